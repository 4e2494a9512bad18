"""Running mean and variance, and normalisation by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxtrpo.config.environment import VECTOR
from jaxtrpo.ops.segments import sum_over_segments

# A standard deviation below this fraction of the mean is rounding error: float32 has a relative precision of 6e-8.
RESOLUTION = 1e-6

# Observations of rare events are normalised to a size of about 1 / sqrt(EVENT_VARIANCE) (see `observation_moments`).
EVENT_VARIANCE = 10.0
# Sizes that vary by a smaller share of their mean square are the same up to rounding error.
LEAST_VARIETY = 1e-3
# Values of one size are taken for events if they are rarer: all forces of a batch may be at their limit by chance.
RAREST_CUE = 1 / 64


class Moments(NamedTuple):
    """Mean and variance of all observations so far, each with the shape of one observation.

    Independent of the units of the observations: the only lower limit of the standard deviation is `RESOLUTION`, which
    is relative to the mean.
    """

    # Stops growing after 2**24 batches of equal size, when adding a batch is lost to rounding. From then on the moments
    # are those of roughly the last 2**24 batches, with older ones fading.
    count: Float[Array, ""]
    mean: Float[Array, "..."]
    variance: Float[Array, "..."]  # population variance (divided by the count)

    @property
    def varies(self) -> Bool[Array, "..."]:
        """Whether observations varied by more than rounding error."""
        return self.variance > (RESOLUTION * jnp.abs(self.mean)) ** 2

    @property
    def known(self) -> Bool[Array, ""]:
        """Whether normalised values can differ from each other; False for `unknown_moments`, unless they are empty."""
        if not jnp.size(self.variance):
            return jnp.ones((), bool)
        return (self.count > 0) | jnp.any(self.varies)

    @property
    def std(self) -> Float[Array, "..."]:
        """Standard deviation, safe to divide by: where nothing varied, the absolute mean, or 1 if that is 0."""
        size = jnp.where(self.mean != 0, jnp.abs(self.mean), 1.0)
        return jnp.where(self.varies, jnp.sqrt(self.variance), size)


def no_moments(shape: tuple[int, ...]) -> Moments:
    """Returns moments of no data with mean 0 and variance 1, so that normalising with them changes nothing."""
    return Moments(jnp.zeros(()), jnp.zeros(shape), jnp.ones(shape))


def unknown_moments(shape: tuple[int, ...]) -> Moments:
    """Returns moments of no data with variance 0: the scale is unknown, so everything is normalised to 0."""
    return Moments(jnp.zeros(()), jnp.zeros(shape), jnp.zeros(shape))


def weighted_moments(
    values: Float[Array, "... *shape"],
    weight: Float[Array, "..."],
    reduce: Callable[[PyTree], PyTree] = lambda total: total,
    num_segments: Int[Array, ""] | None = None,
) -> Moments:
    """Computes the moments of a batch over the axes of `weight`, in two passes.

    The second pass is relative to the mean from the first and corrects its rounding error (Chan, Golub & LeVeque 1983,
    equation 1.7), so the variance of a constant is next to zero, however large the constant.

    Args:
      values: a batch of observations.
      weight: 1 for each observation that counts, else 0.
      reduce: sums over devices that each hold a part of the batch.
      num_segments: number of leading entries that hold data; the rest is not read. None means all.

    Returns:
      Moments of the observations that count; all zero if there are none.
    """
    return _moments_and_sums(lambda values: (), values, weight, reduce, num_segments)[0]


def observation_moments(
    obs: Float[Array, "... *shape"],
    weight: Float[Array, "..."],
    reduce: Callable[[PyTree], PyTree] = lambda total: total,
    num_segments: Int[Array, ""] | None = None,
) -> Moments:
    """Computes the moments of a batch for the normalisation of observations, with more variance for rare events.

    A coordinate that is 0 in most steps and takes various values in the others, such as a contact force, has a small
    variance: if it is not 0 in a share p of the steps, dividing by the standard deviation would make it as large as
    1 / sqrt(p) there. The 54 such coordinates of Ant-v5 would drown the 27 others. So their variance is multiplied by
    1 + 10 r (1 / p - 2) where p is below a half. r, between 0 and 1, is the variance of the values that are not 0 over
    their mean square.

    Where all of these values are the same, or have the same size in at least one step of 64, the variance stays as it
    is: a flag, part of a one-hot vector, or a cue of -1 or 1 tells states apart.

    Shares are those of the batch, so the factor is smaller where few steps of a batch, or only one, are not 0.
    Arguments and result are those of `weighted_moments`.
    """

    def terms(values: Array) -> tuple[Array, ...]:
        return values, jnp.abs(values), values**2, (values != 0).astype(jnp.float32)

    # Sums over the values that are not 0, because adding zeros is exact.
    moments, (sum_, sizes, squares, number) = _moments_and_sums(terms, obs, weight, reduce, num_segments)
    share = number / jnp.maximum(moments.count, 1.0)
    rare = (squares > 0) & (share < 0.5)
    root, number = jnp.sqrt(jnp.where(rare, squares, 1.0)), jnp.where(rare, number, 1.0)
    of_values, of_sizes = (1 - (total / root) ** 2 / number for total in (sum_, sizes))
    rare &= (of_sizes > LEAST_VARIETY) | (of_values > LEAST_VARIETY) & (share < RAREST_CUE)
    factor = 1 + EVENT_VARIANCE * of_values * (1 / jnp.where(rare, share, 0.5) - 2)
    return moments._replace(variance=jnp.where(rare, factor, 1.0) * moments.variance)


def _moments_and_sums(
    terms: Callable[[Array], tuple[Array, ...]],
    values: Float[Array, "... *shape"],
    weight: Float[Array, "..."],
    reduce: Callable[[PyTree], PyTree],
    num_segments: Int[Array, ""] | None,
) -> tuple[Moments, tuple[Array, ...]]:
    """Returns `weighted_moments` and weighted sums of other terms, which share its first pass over the values."""
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
    sum_, *sums = total(lambda values: (values, *terms(values)))
    about = sum_ / safe
    away, squares = total(lambda values: (values - about, (values - about) ** 2))
    correction = away / safe
    variance = jnp.maximum(squares / safe - correction**2, 0.0)
    return Moments(count, about + correction, variance), tuple(sums)


def merge(a: Moments, b: Moments) -> Moments:
    """Returns the moments of two disjoint sets of observations together (Chan, Golub & LeVeque 1979)."""
    count = a.count + b.count
    share = b.count / jnp.maximum(count, 1.0)
    delta = b.mean - a.mean
    merged = Moments(
        count=count,
        mean=a.mean + share * delta,
        variance=(1 - share) * a.variance + share * b.variance + share * (1 - share) * delta**2,
    )
    return jax.tree.map(lambda new, old: jnp.where(count > 0, new, old), merged, a)


def normalize(values: Any, moments: Moments, limit: float = 10.0) -> Any:
    """Computes (values - mean) / std, clipped to [-limit, limit]; 0 where nothing has varied yet.

    With `no_moments`, values are returned unchanged and unclipped.

    Args:
      values: numbers [..., *shape]; or observations with images, a dictionary of which only `VECTOR` has moments.
      moments: moments of the numbers.
      limit: largest result.
    """
    if isinstance(values, dict):
        return {name: normalize(part, moments, limit) if name == VECTOR else part for name, part in values.items()}
    scaled = jnp.where(moments.varies, (values - moments.mean) / moments.std, 0.0)
    return jnp.where(moments.count > 0, jnp.clip(scaled, -limit, limit), scaled)
