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

from jaxtrpo.envs.actions import ActionSpace, make_converter
from jaxtrpo.envs.observations import Observations
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
    observations: Observations | None = None  # as the simulator gives them; None if they are flat
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
        obs: Any,
        *,
        key: PRNGKeyArray | None = None,
    ) -> np.ndarray | np.integer | Num[Array, "..."]:
        """Chooses actions.

        Args:
          obs: one observation or any batch of them, as the environment gives them (of a Dict or Tuple with leading axes
            in every array, as Gymnasium's vector environments have them), or flat as training sees them
            (see `flatten`).
          key: draws a sample if given; without it the action is the mean, or the likeliest choice, deterministic.

        Returns:
          Actions as the simulator takes them: of its shape, within its bounds, and whole numbers where they are
          choices. For NumPy they are NumPy's, of the simulator's own dtype; for JAX they are JAX's, of one that JAX
          has.

        Raises:
          ValueError: these are no observations of this policy.
        """
        obs = self.flatten(obs)
        distribution, action = _predict(
            self.maker, self.observation_size, _hashable(self.actions), self.params, self.moments, obs
        )
        if key is not None:
            noise = distribution.draw_noise(key, (*np.shape(obs)[:-1], distribution.noise_size))
            action = distribution.sample(noise)
        action = to_simulator(action, self.actions)
        if isinstance(obs, jax.Array):
            return _as_simulator(action, self.actions)
        found = self._convert(np.asarray(action))
        return found[()] if self.actions.counts else found  # one number alone is a scalar for choices, else an array

    def flatten(self, obs: Any) -> np.ndarray | Float[Array, "... obs"]:
        """Observations as the network and exported files take them: float32 [..., observation].

        What is in the form of the environment's own observations is read as such; flat ones may be given, too.

        Args:
          obs: as for a call.

        Raises:
          ValueError: these are no observations of this policy.
        """
        own = self.observations
        if own is not None and not own.is_flat and own.fits(obs):
            in_jax = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(obs))
            return _flatten_in_jax(own, obs) if in_jax else own.flatten(obs)
        shape = np.shape(obs)
        if shape[-1:] != (self.observation_size,):
            also = "" if own is None or own.is_flat else f"give observations of {own.words}, or flat ones: "
            raise ValueError(f"obs has shape {shape}; {also}its last axis must be {self.observation_size} long")
        return jnp.asarray(obs, jnp.float32) if isinstance(obs, jax.Array) else np.asarray(obs, np.float32)

    @functools.cached_property
    def _convert(self) -> Callable[[np.ndarray], np.ndarray]:
        return make_converter(self.actions)

    def deterministic(self) -> Callable[[Float[Array, "... obs"]], Num[Array, "..."]]:
        """The actions of `__call__` as a function that can be traced, and whose network is made once, here."""
        network, actions, params, moments = self.network, self.actions, self.params, self.moments

        def act(obs: Float[Array, "... obs"]) -> Num[Array, "..."]:
            return _as_simulator(likeliest_action(network, params, moments, obs, actions), actions)

        return act


def likeliest_action(
    network: Policy, params: PyTree, moments: Moments, obs: Float[Array, "... obs"], actions: ActionSpace
) -> Num[Array, "... action"]:
    """What a policy does without noise, flat, as the simulator takes it."""
    return to_simulator(network.apply(params, normalize(obs, moments)).mode(), actions)


def _flatten_in_jax(observations: Observations, value: Any) -> Float[Array, "... obs"]:
    """As `Observations.flatten` for arrays of JAX, which may be traced: choices that there are not become zeros."""
    rows = []
    for part in observations.parts:
        array = jnp.asarray(part.find(value))
        lead = array.shape[: array.ndim - len(part.shape)]
        part.require_shape(array.shape, lead)
        flat = array.reshape((*lead, -1))
        if part.counts:
            choices = enumerate(zip(part.first, part.counts, strict=True))
            one_hot = [jax.nn.one_hot(flat[..., i] - first, count) for i, (first, count) in choices]
            flat = jnp.concatenate(one_hot, axis=-1)
        rows.append(flat.astype(jnp.float32))
    return jnp.concatenate(rows, axis=-1)


def _as_simulator(action: Num[Array, "... action"], actions: ActionSpace) -> Num[Array, "..."]:
    """Gives flat actions the simulator's shape, and its dtype if JAX has it; choices get the simulator's numbers."""
    action = action.reshape((*action.shape[:-1], *actions.shape_of_one))
    if actions.counts:
        integer = jax.dtypes.canonicalize_dtype(np.int64)
        if np.any(actions.low < np.iinfo(integer).min) or np.any(actions.high > np.iinfo(integer).max):
            raise ValueError(
                f"actions reach from {actions.low.min()} to {actions.high.max()}, beyond JAX's {integer}; give the "
                "policy observations of NumPy"
            )
        return action + actions.low.astype(integer).reshape(actions.shape_of_one)
    return action.astype(jax.dtypes.canonicalize_dtype(actions.dtype))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _predict(
    maker: PolicyMaker, observation_size: int, actions: tuple, params: PyTree, moments: Moments, obs: Array
) -> tuple[Distribution, Array]:
    """Distribution and its mode. Compiled once for all policies of the same maker and sizes."""
    dtype, low, high, counts, shape = actions
    network = maker.make(observation_size, ActionSpace(np.array(low, dtype), np.array(high, dtype), counts, shape))
    distribution = network.apply(params, normalize(jnp.asarray(obs, jnp.float32), moments))
    return distribution, distribution.mode()


def _hashable(actions: ActionSpace) -> tuple:
    return (
        actions.low.dtype,
        tuple(actions.low.tolist()),
        tuple(actions.high.tolist()),
        tuple(actions.counts),
        actions.shape,
    )
