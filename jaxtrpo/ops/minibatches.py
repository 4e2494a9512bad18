"""Random minibatches: passes over rows of data, and draws with replacement."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray, PyTree, UInt32

from jaxtrpo.ops.keys import numbered_key
from jaxtrpo.ops.permutation import shuffled

Carry = TypeVar("Carry")

# Fetching the rows of several minibatches takes half as long as fetching those of one after the other; more rows would
# leave the cache.
ROWS_AT_ONCE = 1_024


def pass_over_minibatches(
    step: Callable[[Carry, PyTree], Carry],
    carry: Carry,
    rows: PyTree,
    num_rows: Int[Array, ""],
    key: PRNGKeyArray | UInt32[Array, "2"],
    minibatch_size: int,
) -> Carry:
    """carry = step(carry, minibatch) for disjoint minibatches of the first rows, in a random order.

    Rows that do not fill a minibatch are left out of this pass; where there are fewer rows than a minibatch has, what
    lies behind them fills it up, and must have no weight.

    Args:
      step: (carry, rows of one minibatch) -> carry.
      carry: where it starts.
      rows: arrays whose leading axis is the row.
      num_rows: how many hold data; traced.
      key: of the order.
      minibatch_size: rows a step.
    """
    capacity = len(jax.tree.leaves(rows)[0])
    size = min(minibatch_size, capacity)
    num_steps = jnp.maximum(num_rows // size, 1)
    at_once = max(min(ROWS_AT_ONCE, capacity) // size, 1)  # minibatches

    def some_steps(number: Int[Array, ""], carry: Carry) -> Carry:
        # The rows that hold data come first, in a random order; sorting one would take longer than the fit.
        chosen = shuffled(key, number * at_once * size + jnp.arange(at_once * size), num_rows)
        # The barrier keeps XLA from fetching each minibatch where it is used.
        fetched = jax.lax.optimization_barrier(jax.tree.map(lambda leaf: leaf[chosen], rows))

        return _one_by_one(step, carry, fetched, jnp.minimum(at_once, num_steps - number * at_once), size)

    return jax.lax.fori_loop(0, -(-num_steps // at_once), some_steps, carry)


def over_drawn_minibatches(
    step: Callable[[Carry, PyTree], Carry],
    carry: Carry,
    draw: Callable[[Carry, UInt32[Array, "2"], int], PyTree],
    key: PRNGKeyArray | UInt32[Array, "2"],
    *,
    number: Int[Array, ""],
    size: int,
) -> Carry:
    """carry = step(carry, minibatch) for so many minibatches, each drawn anew.

    Args:
      step: (carry, rows of one minibatch) -> carry.
      carry: where it starts.
      draw: (carry, key, number) -> so many rows, with replacement; those of several minibatches, with the carry as
        it is before the first of them.
      key: of the draws; the ones that lie behind it are used too (see `numbered_key`).
      number: minibatches; traced.
      size: rows of each.
    """
    at_once = max(ROWS_AT_ONCE // size, 1)  # minibatches

    def some(index: Int[Array, ""], carry: Carry) -> Carry:
        drawn = draw(carry, numbered_key(key, index), at_once * size)
        return _one_by_one(step, carry, drawn, jnp.minimum(at_once, number - index * at_once), size)

    return jax.lax.fori_loop(0, -(-number // at_once), some, carry)


def _one_by_one(
    step: Callable[[Carry, PyTree], Carry], carry: Carry, rows: PyTree, number: Int[Array, ""], size: int
) -> Carry:
    """carry = step(carry, minibatch) for the first minibatches of the rows."""

    def one(index: Int[Array, ""], carry: Carry) -> Carry:
        return step(carry, jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, index * size, size), rows))

    return jax.lax.fori_loop(0, number, one, carry)
