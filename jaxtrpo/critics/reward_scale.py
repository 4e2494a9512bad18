"""What values are measured in, so that networks learn numbers around 1 whatever the rewards."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxtrpo.ops.moments import Moments

REWARDS_IN_A_VALUE = 10.0


def value_unit(rewards: Moments) -> Float[Array, ""]:
    """So many usual rewards, where a usual one is the root mean square of all; 0 while all of them are 0."""
    return REWARDS_IN_A_VALUE * jnp.sqrt(rewards.mean**2 + rewards.variance)
