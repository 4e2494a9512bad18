"""Exploration noise that is correlated over time.

With independent noise, a system with inertia averages the noise of successive actions, and hardly leaves the path of
the deterministic policy. Correlated noise pushes it in the same direction for several steps (Lillicrap et al. 2016;
Hollenstein et al. 2024). At each step, the noise is standard normal, as the policy's distributions assume; algorithms
take the actions of different steps for independent samples, which they are not, so that policy gradients are biased.
"""

from __future__ import annotations

import math

import jax
from jaxtyping import Array, Float, UInt32

from jaxtrpo.ops.keys import key_for


def first_noise(keys: UInt32[Array, "env 2"], noise_size: int) -> Float[Array, "env noise"]:
    """Draws the noise before the first step, with which the noise of all steps has the same distribution."""
    return jax.vmap(lambda key: jax.random.normal(key_for("first_noise", key), (noise_size,)))(keys)


def correlated(
    independent: Float[Array, "time env noise"], last: Float[Array, "env noise"], correlation: float
) -> tuple[Float[Array, "time env noise"], Float[Array, "env noise"]]:
    """Computes first-order autoregressive noise: n' = c n + sqrt(1 - c^2) e.

    Args:
      independent: standard normal numbers e.
      last: noise of the step before.
      correlation: c, that of the noise of one step and the next; c^k over k steps.

    Returns:
      The noise of all steps, and that of the last one.
    """
    fresh = math.sqrt(1 - correlation**2)

    def step(before: Array, new: Array) -> tuple[Array, Array]:
        now = correlation * before + fresh * new
        return now, now

    last, noise = jax.lax.scan(step, last, independent)
    return noise, last
