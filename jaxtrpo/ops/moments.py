"""Running mean and variance."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxtrpo.ops.segments import sum_over_segments


class Moments(NamedTuple):
    """Mean and variance of what was seen so far, each of the shape of one observation."""

    count: Float[Array, ""]
    mean: Float[Array, "..."]
    variance: Float[Array, "..."]  # population variance (divided by the count)

    @property
    def std(self) -> Float[Array, "..."]:
        """Standard deviation; 1 where nothing varied, so that dividing by it is safe."""
        return jnp.where(self.variance > 1e-12, jnp.sqrt(self.variance), 1.0)


def no_moments(shape: tuple[int, ...]) -> Moments:
    """Moments of nothing: mean 0, variance 1, so that normalising with them changes nothing."""
    return Moments(jnp.zeros(()), jnp.zeros(shape), jnp.ones(shape))


def weighted_moments(
    values: Float[Array, "... *shape"],
    weight: Float[Array, "..."],
    reduce: Callable[[Array], Array] = lambda total: total,
    num_segments: Int[Array, ""] | None = None,
) -> Moments:
    """Moments of a batch, in two passes; `weight` (0 or 1) selects, its axes are reduced.

    Args:
      values: a batch of observations.
      weight: one number an observation.
      reduce: sums over devices that each hold a part of the batch.
      num_segments: how much of the leading axis holds data, if not all of it; the rest is not looked at.

    Returns:
      Moments of the observations with weight; all zero if there are none.
    """
    if num_segments is not None:
        filled = jnp.arange(weight.shape[0]) < num_segments
        weight = jnp.where(filled.reshape(-1, *(1,) * (weight.ndim - 1)), weight, 0.0)

    def weighted_sum(values: Array, weight: Array) -> Array:
        weights = weight.reshape(weight.shape + (1,) * (values.ndim - weight.ndim))
        return jnp.sum(weights * values, tuple(range(weight.ndim)))

    def total(term: Callable[[Array], Array]) -> Array:
        if num_segments is None:
            return reduce(weighted_sum(term(values), weight))
        return reduce(sum_over_segments(lambda i: weighted_sum(term(values[i]), weight[i]), num_segments))

    count = reduce(jnp.sum(weight))
    safe = jnp.maximum(count, 1.0)
    mean = total(lambda values: values) / safe
    variance = total(lambda values: (values - mean) ** 2) / safe
    return Moments(count, mean, variance)


def merge(a: Moments, b: Moments) -> Moments:
    """Moments of both sets together (Chan, Golub & LeVeque 1979)."""
    count = a.count + b.count
    share = b.count / jnp.maximum(count, 1.0)
    delta = b.mean - a.mean
    merged = Moments(
        count=count,
        mean=a.mean + share * delta,
        variance=(1 - share) * a.variance + share * b.variance + share * (1 - share) * delta**2,
    )
    return jax.tree.map(lambda new, old: jnp.where(count > 0, new, old), merged, a)


def normalize(values: Float[Array, "... *shape"], moments: Moments, limit: float = 10.0) -> Float[Array, "... *shape"]:
    """(values - mean) / std, clipped to [-limit, limit]."""
    return jnp.clip((values - moments.mean) / moments.std, -limit, limit)
