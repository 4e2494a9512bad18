"""Sums and maps over the filled segments of a batch buffer, in time proportional to their number."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree


def sum_over_segments(function: Callable[[Int[Array, ""] | int], PyTree], num_segments: Int[Array, ""]) -> PyTree:
    """Computes function(0) + ... + function(num_segments - 1); zeros if there are no segments."""
    total, _ = sum_and_map_segments(lambda i: (function(i), ()), num_segments, 0)
    return total


def map_segments(
    function: Callable[[Int[Array, ""] | int], PyTree], num_segments: Int[Array, ""], max_segments: int
) -> PyTree:
    """Stacks function(0), ..., function(num_segments - 1) into buffers of `max_segments`, padded with zeros."""
    _, made = sum_and_map_segments(lambda i: ((), function(i)), num_segments, max_segments)
    return made


def filled_up(buffer: Array, num_segments: Int[Array, ""]) -> Array:
    """Replaces the segments that `map_segments` has not filled by the first one."""
    used = jnp.arange(len(buffer)) < num_segments
    return jnp.where(used.reshape(-1, *[1] * (buffer.ndim - 1)), buffer, buffer[:1])


def sum_and_map_segments(
    function: Callable[[Int[Array, ""] | int], tuple[PyTree, PyTree]], num_segments: Int[Array, ""], max_segments: int
) -> tuple[PyTree, PyTree]:
    """Sums the first result of `function` like `sum_over_segments` and stacks the second like `map_segments`."""
    to_sum, to_keep = jax.eval_shape(lambda: function(0))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), to_sum)
    nothing = jax.tree.map(lambda leaf: jnp.zeros((max_segments, *leaf.shape), leaf.dtype), to_keep)

    def add(i: Int[Array, ""], found: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        sums, kept = found
        more, made = function(i)
        return jax.tree.map(jnp.add, sums, more), jax.tree.map(lambda buffer, one: buffer.at[i].set(one), kept, made)

    return jax.lax.fori_loop(0, num_segments, add, (zeros, nothing))
