"""Pytree helpers missing from optax.tree."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, PyTree

from jaxtrpo.config.kinds import is_key


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether no leaf has a NaN or infinity; PRNG keys count as finite."""
    numbers = [leaf for leaf in jax.tree.leaves(tree) if not is_key(leaf)]
    return jnp.all(jnp.isfinite(ravel_pytree(numbers)[0]))


def if_finite(new: PyTree, before: PyTree) -> PyTree:
    """Returns a tree if all of it is finite, else the one before, which has the same structure, shapes and dtypes."""
    return optax.tree.where(all_finite(new), new, before)


def mean_of_copies(copies: PyTree) -> PyTree:
    """Returns the mean over the leading axis of all leaves, and the first of integers, which must all be equal."""

    def mean(leaf: Array) -> Array:
        return jnp.mean(leaf, axis=0) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf[0]

    return jax.tree.map(mean, copies)
