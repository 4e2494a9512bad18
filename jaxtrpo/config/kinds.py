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
      The first leaf that is not in both, or of which shape or dtype differ, in each of the trees; or, if structures
      with as many leaves differ, both of them, on one short line each.
    """
    leaves = _described(before), _described(after)
    structures = jax.tree.structure(before), jax.tree.structure(after)
    if structures[0] != structures[1] and len(leaves[0]) == len(leaves[1]):
        old, new = (one_line(str(each), 60) for each in structures)
        return old, new
    for name in dict.fromkeys((*leaves[0], *leaves[1])):
        there, here = (each.get(name, f"nothing at {name or 'its root'}") for each in leaves)
        if there != here:
            return there, here
    return None


def _described(tree: PyTree) -> dict[str, str]:
    """Returns the paths of a tree's leaves, and each with its dtype and shape."""
    found = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}
    return {name: f"{name} {jnp.result_type(leaf)}{list(jnp.shape(leaf))}".lstrip() for name, leaf in found.items()}
