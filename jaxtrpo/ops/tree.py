"""Pytree helpers missing from optax.tree."""

from __future__ import annotations

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, PyTree


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether all leaves are free of NaN and infinity."""
    return jnp.all(jnp.isfinite(ravel_pytree(tree)[0]))
