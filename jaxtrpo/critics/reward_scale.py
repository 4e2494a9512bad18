"""The unit of values, chosen so that networks learn numbers around 1 regardless of the scale of rewards."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxtrpo.ops.moments import Moments

REWARDS_IN_A_VALUE = 10.0


def value_unit(rewards: Moments) -> Float[Array, ""]:
    """Returns `REWARDS_IN_A_VALUE` times the root mean square of all rewards; 0 while all rewards are 0."""
    return REWARDS_IN_A_VALUE * jnp.sqrt(rewards.mean**2 + rewards.variance)
