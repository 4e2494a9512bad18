"""Running mean and variance."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxtrpo.ops.segments import sum_over_segments

# A standard deviation below this part of the mean is rounding: float32 resolves 6e-8 of a number.
RESOLUTION = 1e-6


class Moments(NamedTuple):
    """Mean and variance of what was seen so far, each of the shape of one observation.

    Nothing here depends on the unit that the numbers are measured in: there is no smallest standard deviation but
    `RESOLUTION`, a part of the mean.
    """

    # It stops growing after 2**24 batches of one size, since a batch is then lost in its rounding; from there on the
    # moments are those of the last 2**24 batches, about, with older ones fading.
    count: Float[Array, ""]
    mean: Float[Array, "..."]
    variance: Float[Array, "..."]  # population variance (divided by the count)

    @property
    def varies(self) -> Bool[Array, "..."]:
        """Whether more than rounding was seen to change."""
        return self.variance > (RESOLUTION * jnp.abs(self.mean)) ** 2

    @property
    def known(self) -> Bool[Array, ""]:
        """Whether normalising tells one value from another; not so with `unknown_moments`."""
        return (self.count > 0) | jnp.any(self.varies)

    @property
    def std(self) -> Float[Array, "..."]:
        """Standard deviation; where nothing varied the size of the mean, or 1, so that dividing by it is safe."""
        size = jnp.where(self.mean != 0, jnp.abs(self.mean), 1.0)
        return jnp.where(self.varies, jnp.sqrt(self.variance), size)


def no_moments(shape: tuple[int, ...]) -> Moments:
    """Moments of nothing: mean 0, variance 1, so that normalising with them changes nothing."""
    return Moments(jnp.zeros(()), jnp.zeros(shape), jnp.ones(shape))


def unknown_moments(shape: tuple[int, ...]) -> Moments:
    """Moments before anything was seen: without a known scale everything is normalised to 0."""
    return Moments(jnp.zeros(()), jnp.zeros(shape), jnp.zeros(shape))


def weighted_moments(
    values: Float[Array, "... *shape"],
    weight: Float[Array, "..."],
    reduce: Callable[[PyTree], PyTree] = lambda total: total,
    num_segments: Int[Array, ""] | None = None,
) -> Moments:
    """Moments of a batch, in two passes; `weight` (0 or 1) selects, its axes are reduced.

    The second pass is relative to the mean that the first one found, and corrects the rounding of that (Chan, Golub &
    LeVeque 1983, equation 1.7): a number that never changes has a variance of next to nothing, however large it is.

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

    def total(terms: Callable[[Array], tuple[Array, ...]]) -> tuple[Array, ...]:
        def sums_of(values: Array, weight: Array) -> tuple[Array, ...]:
            return tuple(weighted_sum(term, weight) for term in terms(values))

        if num_segments is None:
            return reduce(sums_of(values, weight))
        return reduce(sum_over_segments(lambda i: sums_of(values[i], weight[i]), num_segments))

    count = reduce(jnp.sum(weight))
    safe = jnp.maximum(count, 1.0)
    (sum_,) = total(lambda values: (values,))
    about = sum_ / safe
    away, squares = total(lambda values: (values - about, (values - about) ** 2))
    correction = away / safe
    return Moments(count, about + correction, jnp.maximum(squares / safe - correction**2, 0.0))


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
    """(values - mean) / std, clipped to [-limit, limit]; 0 where nothing varied so far, so that no scale is known.

    With `no_moments` the values stay as they are, without a limit.
    """
    scaled = jnp.where(moments.varies, (values - moments.mean) / moments.std, 0.0)
    return jnp.where(moments.count > 0, jnp.clip(scaled, -limit, limit), scaled)
