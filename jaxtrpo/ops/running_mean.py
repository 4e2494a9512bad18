"""Mean of what a number was lately."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class RunningMean(NamedTuple):
    """A plain mean until there are enough values; then old ones fade."""

    mean: Float[Array, ""]  # 0 before the first
    count: Int[Array, ""]  # of values so far


def no_mean() -> RunningMean:
    """Before the first value."""
    return RunningMean(jnp.float32(0), jnp.int32(0))


def take_in(running: RunningMean, value: Float[Array, ""], memory: int) -> RunningMean:
    """The mean with one more value, which is left out if it is not finite.

    Args:
      running: of the values before.
      value: the new one.
      memory: so many values count; of more, each new one takes the place of 1 / memory of the rest.
    """
    seen = jnp.isfinite(value)
    rate = 1 / jnp.minimum(running.count + 1, memory)
    mean = (1 - rate) * running.mean + rate * value  # no difference of large numbers that leaves a small one
    return RunningMean(jnp.where(seen, mean, running.mean), running.count + seen)
