"""Functions of many rows, applied to as many at a time as fit into the caches."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from jaxtrpo.parallel.collectives import on_cpu

# What a part takes in its first layer: on a CPU what stays in the second cache of a core, but no fewer rows than matrix
# products need to be fast; what fills an accelerator.
PART_BYTES, FEWEST_ROWS, ON_ACCELERATOR = 2**19, 8, 2**28


def rows_at_once(numbers: int, *, most_bytes: int | None = None) -> int:
    """Returns how many rows a part has.

    Args:
      numbers: float32 numbers that the first layer reads and writes for a row.
      most_bytes: on a CPU, most that a part takes in its first layer, in place of what stays in the cache.
    """
    if not on_cpu():
        return max(ON_ACCELERATOR // (4 * numbers), 1)
    if most_bytes is not None:
        return max(most_bytes // (4 * numbers), 1)
    return max(PART_BYTES // (4 * numbers), FEWEST_ROWS)


def in_parts(function: Callable[[PyTree], PyTree], rows: PyTree, at_once: int | None) -> PyTree:
    """Applies a function of rows to parts of them, one after another.

    Args:
      function: a function of rows, each of which is independent of the others.
      rows: arrays with the same leading axis.
      at_once: most rows of a part; None: all rows are one.

    Returns:
      The results, with the same leading axis.
    """
    number = jax.tree.leaves(rows)[0].shape[0]
    if at_once is None or not isinstance(number, int) or number <= at_once:  # a symbol where a policy is exported
        return function(rows)
    # Parts without a remainder need neither a second program nor a copy of all results.
    size = max(each for each in range(1, at_once + 1) if number % each == 0)
    size = size if 2 * size > at_once else at_once
    whole = number // size * size
    parts = jax.tree.map(lambda leaf: leaf[:whole].reshape(-1, size, *leaf.shape[1:]), rows)
    found = jax.tree.map(lambda leaf: leaf.reshape(whole, *leaf.shape[2:]), jax.lax.map(function, parts))
    if whole == number:
        return found
    rest = function(jax.tree.map(lambda leaf: leaf[whole:], rows))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), found, rest)
