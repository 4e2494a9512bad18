"""Running mean of recent values of a scalar."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class RunningMean(NamedTuple):
    """A plain mean of the first values, then an exponential moving average."""

    mean: Float[Array, ""]  # 0 before the first value
    count: Int[Array, ""]  # values so far


def no_mean() -> RunningMean:
    """Returns the state before the first value."""
    return RunningMean(jnp.float32(0), jnp.int32(0))


def update_mean(running: RunningMean, value: Float[Array, ""], memory: int) -> RunningMean:
    """Returns the mean updated with one more value, which is ignored if it is not finite.

    Args:
      running: mean of the previous values.
      value: new value.
      memory: number of values with equal weight; beyond it, each new value gets weight 1 / memory.
    """
    seen = jnp.isfinite(value)
    rate = 1 / jnp.minimum(running.count + 1, memory)
    mean = (1 - rate) * running.mean + rate * value  # avoids cancellation between large numbers
    return RunningMean(jnp.where(seen, mean, running.mean), running.count + seen)
