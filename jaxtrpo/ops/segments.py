"""Batches are buffers of segments, the first few of which are filled: work on those takes time for those only."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree


def sum_over_segments(function: Callable[[Int[Array, ""] | int], PyTree], num_segments: Int[Array, ""]) -> PyTree:
    """function(0) + ... + function(num_segments - 1); zeros of the same shapes if there are none."""
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(lambda: function(0)))
    return jax.lax.fori_loop(0, num_segments, lambda i, sums: jax.tree.map(jnp.add, sums, function(i)), zero)


def map_segments(function: Callable[[Array], Array], buffer: Array, num_segments: Int[Array, ""]) -> Array:
    """A buffer of what `function` makes of each of the first `num_segments` segments; zeros behind them."""
    made = jax.eval_shape(function, buffer[0])
    nothing = jnp.zeros((buffer.shape[0], *made.shape), made.dtype)
    return jax.lax.fori_loop(0, num_segments, lambda i, filled: filled.at[i].set(function(buffer[i])), nothing)
