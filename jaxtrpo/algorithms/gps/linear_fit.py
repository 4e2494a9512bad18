"""Linear models around samples, time step by time step, with a prior."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxtrpo.algorithms.gps.definite import inverse


class LinearFit(NamedTuple):
    """y ~ N(constant_t + slope_t (z - centre_t), covariance_t)."""

    centre: Float[Array, "*batch time z"]
    constant: Float[Array, "*batch time output"]
    slope: Float[Array, "*batch time output z"]
    covariance: Float[Array, "*batch time output output"]


def centres(z: Float[Array, "time sample z"], weight: Float[Array, "time sample"]) -> Float[Array, "time z"]:
    """Weighted mean of the samples of each step; 0 where none counts."""
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
    """The prior, corrected by what samples near each step say of its errors: the posterior mean of a linear regression.

        slope = prior slope + E,   E = (sum e d^T) (sum d d^T + strength diag(scale^2))^-1

    over the samples of `window` steps before and after, with d = z - centre of their step and e the residual less its
    mean. Coefficients have a normal prior around those of the prior model, with the precision of `strength` samples
    whose z vary by `scale`; the noise has an inverse Wishart prior of as many samples (Gelman et al. 2013, section
    14.8).

    Args:
      z: states and actions.
      residual: what came after, less what the prior model said of it, at each sample.
      weight: 0 for a sample that does not count, else 1.
      prior: what the prior model is around the centres.
      scale: usual deviation of each number in z.
      strength: samples that the prior is worth.
      window: steps on either side whose samples count as well, since models change little from step to step.
    """
    away = weight[..., None] * (z - prior.centre[:, None])
    count = jnp.sum(weight, axis=1)
    mean = jnp.einsum("ts,tso->to", weight, residual) / jnp.maximum(count, 1.0)[:, None]
    error = weight[..., None] * (residual - mean[:, None])

    def near(per_step: Float[Array, "time ..."]) -> Float[Array, "time ..."]:
        """Sums over the steps of the window."""
        return sum((_shifted(per_step, lag) for lag in range(-window, window + 1)), jnp.zeros_like(per_step))

    outer = near(jnp.einsum("tsi,tsj->tij", away, away)) + strength * jnp.diag(scale**2)
    change = near(jnp.einsum("tso,tsj->toj", error, away)) @ inverse(outer).matrix
    left = error - jnp.einsum("toj,tsj->tso", change, away)
    spread = near(jnp.einsum("tso,tsp->top", left, left)) + strength * prior.covariance
    covariance = spread / (near(count) + strength)[:, None, None]
    # The mean is a coefficient too; a step with few samples keeps some of the prior's.
    share = count / (count + 1.0)
    return LinearFit(prior.centre, prior.constant + share[:, None] * mean, prior.slope + change, covariance)


def _shifted(per_step: Float[Array, "time ..."], lag: int) -> Float[Array, "time ..."]:
    """Values of `lag` steps later, 0 where there are none."""
    steps = per_step.shape[0]
    if abs(lag) >= steps:
        return jnp.zeros_like(per_step)
    pad = [(max(-lag, 0), max(lag, 0)), *[(0, 0)] * (per_step.ndim - 1)]
    return jax.lax.slice_in_dim(jnp.pad(per_step, pad), max(lag, 0), max(lag, 0) + steps)
