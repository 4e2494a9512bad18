"""Pytree helpers missing from optax.tree."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, PyTree


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether no leaf has a NaN or infinity; PRNG keys count as finite."""
    leaves = jax.tree.leaves(tree)
    numbers = [leaf for leaf in leaves if not jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)]
    return jnp.all(jnp.isfinite(ravel_pytree(numbers)[0]))
