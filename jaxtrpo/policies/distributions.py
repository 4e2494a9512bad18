"""The distribution of actions."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

LOG_TWO_PI = math.log(2 * math.pi)


class Gaussian(NamedTuple):
    """Independent normal distributions, one an action coordinate; any leading axes."""

    mean: Float[Array, "... action"]
    log_std: Float[Array, "... action"]  # may have fewer axes than `mean`


def sample(distribution: Gaussian, noise: Float[Array, "... action"]) -> Float[Array, "... action"]:
    """mean + std * noise, with standard normal `noise`."""
    return distribution.mean + jnp.exp(distribution.log_std) * noise


def log_prob(distribution: Gaussian, action: Float[Array, "... action"]) -> Float[Array, "..."]:
    """Log density of an action, nats."""
    z = (action - distribution.mean) * jnp.exp(-distribution.log_std)
    return jnp.sum(-0.5 * z**2 - distribution.log_std - 0.5 * LOG_TWO_PI, axis=-1)


def kl_divergence(old: Gaussian, new: Gaussian) -> Float[Array, "..."]:
    """KL(old || new), nats: sum of log s'/s + (s^2 + (m - m')^2) / (2 s'^2) - 1/2."""
    ratio = old.log_std - new.log_std
    shift = (old.mean - new.mean) * jnp.exp(-new.log_std)
    # expm1 keeps the small values that trust regions are about: it is exactly zero for equal distributions.
    return jnp.sum(0.5 * (jnp.expm1(2 * ratio) + shift**2) - ratio, axis=-1)


def entropy(distribution: Gaussian) -> Float[Array, "..."]:
    """Differential entropy, nats."""
    log_std = jnp.broadcast_to(distribution.log_std, distribution.mean.shape)
    return jnp.sum(log_std + 0.5 * (LOG_TWO_PI + 1), axis=-1)


def fisher_metric(distribution: Gaussian, tangent: Gaussian) -> Gaussian:
    """Fisher matrix times a tangent vector; the matrix is diagonal: 1 / s^2 for a mean, 2 for a log std."""
    return Gaussian(
        mean=tangent.mean * jnp.exp(-2 * distribution.log_std),
        log_std=2 * tangent.log_std,
    )


def stretch(
    action: Float[Array, "... action"], low: Float[ArrayLike, " action"], high: Float[ArrayLike, " action"]
) -> Float[Array, "... action"]:
    """Policy units to simulator units: clips to [-1, 1] and stretches that to the simulator's range."""
    low, high = jnp.asarray(low), jnp.asarray(high)
    return low + (jnp.clip(action, -1.0, 1.0) + 1.0) * 0.5 * (high - low)
