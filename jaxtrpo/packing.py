"""A tree of arrays as few vectors: what takes as long for one number as for many is done once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree


def at_once(tree: PyTree, meet: Callable[[jax.Array], jax.Array], kind: Callable[[jax.Array], Any]) -> PyTree:
    """What `meet` makes of the leaves of a tree, called once for each kind of numbers instead of once a leaf.

    Args:
      tree: of arrays.
      meet: of a vector, number by number; it may add axes in front.
      kind: type of number that a leaf is seen as meanwhile; one of the same size.
    """
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    for dtype in dict.fromkeys(kind(leaf) for leaf in leaves):
        which = [number for number, leaf in enumerate(leaves) if kind(leaf) == dtype]
        met = meet(jnp.concatenate([_seen_as(leaves[number], dtype).reshape(-1) for number in which]))
        begin = 0
        for number in which:
            leaf = leaves[number]
            part = met[..., begin : begin + leaf.size].reshape(*met.shape[:-1], *leaf.shape)
            begin += leaf.size
            leaves[number] = _seen_as(part, leaf.dtype)
    return jax.tree.unflatten(structure, leaves)


def bits(leaf: jax.Array) -> jnp.dtype:
    """The whole numbers of the same size as those of a leaf; truth values take as much room as most others do."""
    return jnp.dtype(jnp.int32) if leaf.dtype == jnp.bool_ else jnp.dtype(f"int{8 * leaf.dtype.itemsize}")


def _seen_as(leaf: jax.Array, dtype: jnp.dtype) -> jax.Array:
    if jnp.bool_ in (leaf.dtype, dtype):
        return leaf.astype(dtype)
    return jax.lax.bitcast_convert_type(leaf, dtype)
