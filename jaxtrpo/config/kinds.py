"""Checks of what user code returns: shapes and types that compiled programs carry from step to step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from jaxtrpo.config.messages import one_line


def is_key(leaf: Any) -> bool:
    """Returns whether a leaf of a tree is an array of typed PRNG keys."""
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)


def kinds_differ(before: PyTree, after: PyTree) -> tuple[str, str] | None:
    """Returns how two trees differ in their structure, shapes or dtypes; None if a compiled loop could carry both.

    Returns:
      The two structures, on one short line each, or, if these are equal, the first two leaves of which shape or dtype
      differ.
    """
    structures = jax.tree.structure(before), jax.tree.structure(after)
    if structures[0] != structures[1]:
        before, after = (one_line(str(each), 60) for each in structures)
        return before, after
    for (path, old), new in zip(jax.tree.leaves_with_path(before), jax.tree.leaves(after), strict=True):
        name = jax.tree_util.keystr(path)
        there, here = (f"{name} {jnp.result_type(leaf)}{list(jnp.shape(leaf))}".lstrip() for leaf in (old, new))
        if there != here:
            return there, here
    return None
