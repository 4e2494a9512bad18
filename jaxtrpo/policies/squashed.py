"""Policies whose actions are squashed into their bounds by tanh, instead of clipped to them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from jaxtrpo.config.checks import require_number, require_sizes
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.envs.observation_space import Observed, flat_size
from jaxtrpo.policies.distributions import LOG_TWO_PI, Distribution, Gaussian
from jaxtrpo.policies.heads import Head
from jaxtrpo.policies.networks import LAST, Policy, PolicyMaker, orthogonal_init

HIDDEN = (256, 256)
INITIAL_LOG_STD = 0.0  # actions are nearly uniform at first
LARGEST = 1 - 2.0**-20  # action, in policy units, whose inverse is computed
# Gauss-Hermite quadrature: expectations over a standard normal number are sums over these nodes.
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


class SquashedGaussian(NamedTuple):
    """The distribution of tanh(u), with independent normal u; any leading axes.

    tanh is invertible, so KL divergence and Fisher metric are those of u.
    """

    mean: Float[Array, "... action"]  # of u
    log_std: Float[Array, "... action"]  # of u

    draw_noise = staticmethod(Gaussian.draw_noise)  # standard normal numbers

    @property
    def noise_size(self) -> int:
        """One number per action coordinate."""
        return self.mean.shape[-1]

    @property
    def inner(self) -> Gaussian:
        """The distribution of u."""
        return Gaussian(self.mean, self.log_std)

    def sample(self, noise: Float[Array, "... action"]) -> Float[Array, "... action"]:
        """Computes tanh(mean + std * noise), with standard normal `noise`."""
        return jnp.tanh(self.inner.sample(noise))

    def sample_with_log_prob(
        self, noise: Float[Array, "... action"]
    ) -> tuple[Float[Array, "... action"], Float[Array, "..."]]:
        """Computes an action and its log density, which is exact also near the bounds."""
        inner = self.inner.sample(noise)
        return jnp.tanh(inner), self.inner.log_prob(inner) - jnp.sum(_log_slope(inner), axis=-1)

    def mode(self) -> Float[Array, "... action"]:
        """Returns tanh(mean), the median, which SAC evaluates; the density can be largest at the bounds."""
        return jnp.tanh(self.mean)

    def log_prob(self, action: Float[Array, "... action"]) -> Float[Array, "..."]:
        """Computes the log density, log p(u) - sum log(1 - tanh(u)^2).

        Coordinates so near a bound that float32 numbers do not tell their u have the log probability of being there
        instead, which keeps the mean of the score at 0.
        """
        inside = jnp.abs(action) < LARGEST
        inner = jnp.arctanh(jnp.where(inside, action, 0.0))
        standard = (inner - self.mean) * jnp.exp(-self.log_std)
        density = -0.5 * standard**2 - self.log_std - 0.5 * LOG_TWO_PI - _log_slope(inner)
        beyond = (jnp.sign(action) * self.mean - math.atanh(LARGEST)) * jnp.exp(-self.log_std)
        return jnp.sum(jnp.where(inside, density, jax.scipy.special.log_ndtr(beyond)), axis=-1)

    def entropy(self) -> Float[Array, "..."]:
        """Computes the differential entropy, that of u plus E[log(1 - tanh(u)^2)], by Gauss-Hermite quadrature.

        Its error is below 0.001 for standard deviations of u up to 2, and 0.1 at 7.
        """
        inner = self.mean[..., None] + jnp.exp(self.log_std)[..., None] * jnp.asarray(NODES, jnp.float32)
        slope = jnp.sum(jnp.asarray(WEIGHTS, jnp.float32) * _log_slope(inner), axis=(-2, -1))
        return self.inner.entropy() + slope

    def kl_divergence(self, new: SquashedGaussian) -> Float[Array, "..."]:
        """Computes the divergence of the normal distributions."""
        return self.inner.kl_divergence(new.inner)

    def fisher_metric(self, tangent: SquashedGaussian) -> SquashedGaussian:
        """Multiplies by the Fisher matrix of the normal distribution."""
        return SquashedGaussian(*self.inner.fisher_metric(tangent.inner))

    def summary(self) -> dict[str, Float[Array, ""]]:
        """Computes the mean standard deviation of u over states and coordinates."""
        return self.inner.summary()


def _log_slope(inner: Float[Array, "..."]) -> Float[Array, "..."]:
    """Computes log(1 - tanh(u)^2) without cancellation."""
    return 2 * (math.log(2) - inner - nn.softplus(-2 * inner))


class _Network(nn.Module):
    hidden: Sequence[int]
    head: Head

    @nn.compact
    def __call__(self, obs: Float[Array, "... obs"]) -> Distribution:
        x = obs
        for size in self.hidden:
            x = nn.relu(nn.Dense(size, kernel_init=nn.initializers.zeros)(x))
        outputs = nn.Dense(self.head.outputs, kernel_init=nn.initializers.zeros, name=LAST)(x)
        inner = cast(Gaussian, self.head.distribution(self, outputs))
        return SquashedGaussian(inner.mean, inner.log_std)


def squashed(*, hidden: Sequence[int] = HIDDEN, initial_log_std: float | int = INITIAL_LOG_STD) -> PolicyMaker:
    """A ReLU network for bounded continuous actions, whose Gaussian is squashed by tanh (Haarnoja et al. 2018).

    Mean and standard deviation depend on the observation. It is the default of `sac`; other algorithms can train it,
    too, except those that differentiate a critic of actions.

    Args:
      hidden: sizes of the hidden layers.
      initial_log_std: initial log standard deviation before squashing, with which actions are nearly uniform.

    Returns:
      The same object for the same settings, so that compiled code is shared.

    Raises:
      ValueError: a setting is invalid. `make` raises it if actions are discrete or have no bounds.
    """
    require_sizes(hidden=hidden)
    require_number("between -10 and 5", lambda value: -10 <= value <= 5, initial_log_std=initial_log_std)
    return _squashed(tuple(hidden), float(initial_log_std))


@functools.cache
def _squashed(hidden: tuple[int, ...], initial_log_std: float) -> PolicyMaker:
    def make(observed: Observed, actions: ActionSpace) -> Policy:
        size = flat_size(observed, "policy=squashed")
        if actions.counts or not np.all(actions.bounded):
            kind, instead = ("discrete", "dqn") if actions.counts else ("without bounds", "trpo")
            raise ValueError(
                f"policy=squashed needs continuous actions between bounds, but these are {kind}; use mlp (and "
                f"{instead} in place of sac)"
            )
        network = _Network(hidden, Head(actions.size, (), initial_log_std, state_dependent_std=True))
        return Policy(
            init=lambda key: orthogonal_init(network, key, size, last_scale=0.01),
            apply=cast(Callable[..., Any], network.apply),
            noise_size=actions.size,
            draw_noise=SquashedGaussian.draw_noise,
        )

    return PolicyMaker(spec_string_of(squashed, {"hidden": hidden, "initial_log_std": initial_log_std}), make)
