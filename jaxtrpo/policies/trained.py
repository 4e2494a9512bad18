"""A policy to act with, outside of compiled training code."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num, PRNGKeyArray, PyTree

from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.ops.moments import Moments, normalize
from jaxtrpo.policies.distributions import Distribution, to_simulator
from jaxtrpo.policies.networks import Policy, PolicyMaker


@dataclasses.dataclass(frozen=True)
class TrainedPolicy:
    """What training returns: call it with observations to get actions in the simulator's units."""

    env_name: str
    observation_size: int
    actions: ActionSpace
    maker: PolicyMaker
    params: PyTree
    moments: Moments  # of observations
    max_episode_steps: int | None = None  # time limit that training gave the environment, if it was not its own

    @property
    def action_low(self) -> np.ndarray:
        """Least action, simulator's units, one number a coordinate."""
        return self.actions.low

    @property
    def action_high(self) -> np.ndarray:
        """Largest action, simulator's units, one number a coordinate."""
        return self.actions.high

    @property
    def network(self) -> Policy:
        """The network that `params` belong to."""
        return self.maker.make(self.observation_size, self.actions)

    def __call__(
        self,
        obs: np.ndarray | Float[Array, "... obs"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> np.ndarray | np.integer | Num[Array, "..."]:
        """Chooses actions.

        Args:
          obs: one observation or any batch of them, as the environment gives them.
          key: draws a sample if given; without it the action is the mean, or the likeliest choice, deterministic.

        Returns:
          Actions as the simulator takes them: of its shape, within its range, and whole numbers where they are choices;
          NumPy for NumPy, JAX for JAX.

        Raises:
          ValueError: the last axis is not an observation of this policy.
        """
        if np.shape(obs)[-1:] != (self.observation_size,):
            raise ValueError(f"obs has shape {np.shape(obs)}; its last axis must be {self.observation_size} long")
        distribution, action = _predict(
            self.maker, self.observation_size, _hashable(self.actions), self.params, self.moments, obs
        )
        if key is not None:
            noise = distribution.draw_noise(key, (*np.shape(obs)[:-1], distribution.noise_size))
            action = distribution.sample(noise)
        action = to_simulator(action, self.actions)
        return self._as_simulator(action if isinstance(obs, jax.Array) else np.asarray(action))

    def deterministic(self) -> Callable[[Float[Array, "... obs"]], Num[Array, "..."]]:
        """The actions of `__call__` as a function that can be traced, and whose network is made once, here."""
        network, actions, params, moments = self.network, self.actions, self.params, self.moments

        def act(obs: Float[Array, "... obs"]) -> Num[Array, "..."]:
            return self._as_simulator(likeliest_action(network, params, moments, obs, actions))

        return act

    def _as_simulator(self, action: Any) -> Any:
        """Gives flat actions the simulator's shape, and choices its numbers."""
        shape = (self.actions.size,) if self.actions.shape is None else self.actions.shape
        action = action.reshape((*action.shape[:-1], *shape))
        if not self.actions.counts:
            return action
        # A sum of NumPy's is a scalar where there is one number, which is what Gymnasium takes.
        return action + self.actions.low.astype(np.int32 if isinstance(action, jax.Array) else np.int64).reshape(shape)


def likeliest_action(
    network: Policy, params: PyTree, moments: Moments, obs: Float[Array, "... obs"], actions: ActionSpace
) -> Num[Array, "... action"]:
    """What a policy does without noise, flat, as the simulator takes it."""
    return to_simulator(network.apply(params, normalize(obs, moments)).mode(), actions)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _predict(
    maker: PolicyMaker, observation_size: int, actions: tuple, params: PyTree, moments: Moments, obs: Array
) -> tuple[Distribution, Array]:
    """Distribution and its mode. Compiled once for all policies of the same maker and sizes."""
    low, high, counts, shape = actions
    network = maker.make(
        observation_size, ActionSpace(np.asarray(low, np.float32), np.asarray(high, np.float32), counts, shape)
    )
    distribution = network.apply(params, normalize(jnp.asarray(obs, jnp.float32), moments))
    return distribution, distribution.mode()


def _hashable(actions: ActionSpace) -> tuple:
    return tuple(actions.low.tolist()), tuple(actions.high.tolist()), tuple(actions.counts), actions.shape
