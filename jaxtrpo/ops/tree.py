"""Pytree helpers missing from optax.tree."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, PyTree


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether all leaves are free of NaN and infinity; random keys are."""
    numbers = [leaf for leaf in jax.tree.leaves(tree) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)]
    return jnp.all(jnp.isfinite(ravel_pytree(numbers)[0]))
