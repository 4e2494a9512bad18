"""Bayesian linear regression around samples, time step by time step, with a prior model."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxtrpo.algorithms.gps.definite import inverse


class LinearFit(NamedTuple):
    """Time-varying linear-Gaussian model: y ~ N(constant_t + slope_t (z - centre_t), covariance_t)."""

    centre: Float[Array, "*batch time z"]
    constant: Float[Array, "*batch time output"]
    slope: Float[Array, "*batch time output z"]
    covariance: Float[Array, "*batch time output output"]


def centres(z: Float[Array, "time sample z"], weight: Float[Array, "time sample"]) -> Float[Array, "time z"]:
    """Computes the weighted mean of the samples of each step; 0 where none counts."""
    count = jnp.maximum(jnp.sum(weight, axis=1), 1.0)
    return jnp.einsum("ts,tsz->tz", weight, z) / count[:, None]


def linear_fit(
    z: Float[Array, "time sample z"],
    residual: Float[Array, "time sample output"],
    weight: Float[Array, "time sample"],
    prior: LinearFit,
    scale: Float[Array, " z"],
    *,
    strength: float,
    window: int,
) -> LinearFit:
    """Corrects a prior model by the residuals of samples near each step: the posterior mean of a linear regression.

        slope = prior slope + E,   E = (sum e d^T) (sum d d^T + strength diag(scale^2))^-1

    The sums run over the samples of `window` steps before and after; d = z - centre of their step, and e is the
    residual minus its mean. Coefficients have a normal prior around those of the prior model, with the precision of
    `strength` samples whose z vary by `scale`; the noise has an inverse Wishart prior worth as many samples (Gelman et
    al. 2013, section 14.8).

    Args:
      z: states and actions.
      residual: error of the prior model at each sample: observed minus predicted output.
      weight: 1 for a sample that counts, else 0.
      prior: the prior model, linearised at the centres.
      scale: typical deviation of each entry of z.
      strength: number of samples that the prior is worth.
      window: steps on either side whose samples also count, because models change little from step to step.
    """
    away = weight[..., None] * (z - prior.centre[:, None])
    count = jnp.sum(weight, axis=1)
    mean = jnp.einsum("ts,tso->to", weight, residual) / jnp.maximum(count, 1.0)[:, None]
    error = weight[..., None] * (residual - mean[:, None])

    def near(per_step: Float[Array, "time ..."]) -> Float[Array, "time ..."]:
        """Sums over the window around each step."""
        return sum((_shifted(per_step, lag) for lag in range(-window, window + 1)), jnp.zeros_like(per_step))

    outer = near(jnp.einsum("tsi,tsj->tij", away, away)) + strength * jnp.diag(scale**2)
    change = near(jnp.einsum("tso,tsj->toj", error, away)) @ inverse(outer).matrix
    left = error - jnp.einsum("toj,tsj->tso", change, away)
    spread = near(jnp.einsum("tso,tsp->top", left, left)) + strength * prior.covariance
    covariance = spread / (near(count) + strength)[:, None, None]
    # The constant is a coefficient too: with few samples it stays close to that of the prior.
    share = count / (count + 1.0)
    return LinearFit(prior.centre, prior.constant + share[:, None] * mean, prior.slope + change, covariance)


def _shifted(per_step: Float[Array, "time ..."], lag: int) -> Float[Array, "time ..."]:
    """Shifts values by `lag` steps, so that each step holds the value of `lag` steps later, or 0 beyond the end."""
    steps = per_step.shape[0]
    if abs(lag) >= steps:
        return jnp.zeros_like(per_step)
    pad = [(max(-lag, 0), max(lag, 0)), *[(0, 0)] * (per_step.ndim - 1)]
    return jax.lax.slice_in_dim(jnp.pad(per_step, pad), max(lag, 0), max(lag, 0) + steps)
