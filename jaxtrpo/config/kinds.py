"""Checks of what user code returns: shapes and types that compiled programs carry from step to step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import PyTree


def kinds_differ(before: PyTree, after: PyTree) -> tuple[str, str] | None:
    """Returns how two trees differ in their structure, shapes or dtypes; None if a compiled loop could carry both.

    Returns:
      The two structures or, if these are equal, the first two leaves of which shape or dtype differ.
    """
    structures = jax.tree.structure(before), jax.tree.structure(after)
    if structures[0] != structures[1]:
        return f"{structures[0]}", f"{structures[1]}"
    for (path, old), new in zip(jax.tree.leaves_with_path(before), jax.tree.leaves(after), strict=True):
        name = jax.tree_util.keystr(path)
        there, here = (f"{name} {jnp.result_type(leaf)}{list(jnp.shape(leaf))}".lstrip() for leaf in (old, new))
        if there != here:
            return there, here
    return None
