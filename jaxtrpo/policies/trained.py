"""A policy to act with, outside of compiled training code."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxtrpo.ops.moments import Moments, normalize
from jaxtrpo.policies.distributions import Gaussian, sample, stretch
from jaxtrpo.policies.networks import Policy, gaussian_policy


@dataclasses.dataclass(frozen=True)
class TrainedPolicy:
    """What training returns: call it with observations to get actions in the simulator's units."""

    env_name: str
    observation_size: int
    action_low: np.ndarray
    action_high: np.ndarray
    hidden: tuple[int, ...]
    params: PyTree
    moments: Moments  # of observations

    @property
    def network(self) -> Policy:
        """The network that `params` belong to."""
        return gaussian_policy(self.observation_size, len(self.action_low), hidden=self.hidden)

    def __call__(
        self,
        obs: np.ndarray | Float[Array, "... obs"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> np.ndarray | Float[Array, "... action"]:
        """Chooses actions.

        Args:
          obs: one observation or any batch of them, as the environment gives them.
          key: draws a sample if given; without it the action is the mean, deterministic.

        Returns:
          Actions within the simulator's range; NumPy for NumPy, JAX for JAX.

        Raises:
          ValueError: the last axis is not an observation of this policy.
        """
        if np.shape(obs)[-1:] != (self.observation_size,):
            raise ValueError(f"obs has shape {np.shape(obs)}; its last axis must be {self.observation_size} long")
        distribution = _predict(
            self.observation_size, self.action_low.size, self.hidden, self.params, self.moments, obs
        )
        if key is None:
            action = distribution.mean
        else:
            action = sample(distribution, jax.random.normal(key, distribution.mean.shape))
        action = stretch(action, self.action_low, self.action_high)
        return action if isinstance(obs, jax.Array) else np.asarray(action)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _predict(
    observation_size: int, action_size: int, hidden: tuple[int, ...], params: PyTree, moments: Moments, obs: Array
) -> Gaussian:
    network = gaussian_policy(observation_size, action_size, hidden=hidden)
    return network.apply(params, normalize(jnp.asarray(obs, jnp.float32), moments))
