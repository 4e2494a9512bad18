"""What optax.tree lacks."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether no leaf holds a NaN or an infinity."""
    return functools.reduce(jnp.logical_and, (jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)))
