"""Trained policies, for use outside of training."""

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
    """A trained policy, which maps observations to actions in the simulator's units when called."""

    env_name: str
    observation_size: int
    actions: ActionSpace
    maker: PolicyMaker
    params: PyTree
    moments: Moments  # moments for the normalisation of observations
    observations: Observations | None = None  # the simulator's observation space; None if it is flat
    max_episode_steps: int | None = None  # time limit of training, if not the environment's own

    @property
    def action_low(self) -> np.ndarray:
        """Lower bounds of actions in the simulator's units, one per coordinate."""
        return self.actions.low

    @property
    def action_high(self) -> np.ndarray:
        """Upper bounds of actions in the simulator's units, one per coordinate."""
        return self.actions.high

    @property
    def network(self) -> Policy:
        """The network of `params`."""
        return self.maker.make(self.observation_size, self.actions)

    def __call__(
        self,
        obs: Any,
        *,
        key: PRNGKeyArray | None = None,
    ) -> np.ndarray | np.integer | Num[Array, "..."]:
        """Computes actions for one observation or a batch.

        Args:
          obs: one observation or a batch with any leading axes, in the environment's form or flat (see `flatten`). In
            batches of Dict or Tuple observations, every array has the leading axes, as in Gymnasium's vector
            environments.
          key: random key to sample actions; None: the mode of the distribution.

        Returns:
          Actions in the simulator's form: of its shape, within its bounds, and integers if discrete. For NumPy
          observations, they are NumPy arrays of the simulator's dtype; for JAX arrays, they are JAX arrays of the
          nearest dtype that JAX supports.

        Raises:
          ValueError: the observations do not fit the policy.
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
        converted = self._convert(np.asarray(action))
        # As in Gymnasium, a single number is a scalar if it is discrete, else a zero-dimensional array.
        return converted[()] if self.actions.counts else converted

    def flatten(self, obs: Any) -> np.ndarray | Float[Array, "... obs"]:
        """Flattens observations to float32 [..., observation], the input of the network and of exported files.

        Args:
          obs: observations in the environment's form, or flat ones, which are returned as float32.

        Raises:
          ValueError: the observations do not fit the policy.
        """
        own = self.observations
        if own is not None and not own.is_flat and own.fits(obs):
            in_jax = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(obs))
            return _flatten_in_jax(own, obs) if in_jax else own.flatten(obs)
        shape = np.shape(obs)
        if shape[-1:] != (self.observation_size,):
            structured = "" if own is None or own.is_flat else f"pass observations of {own.words}, or flat ones: "
            raise ValueError(f"obs has shape {shape}; {structured}its last axis must have size {self.observation_size}")
        return jnp.asarray(obs, jnp.float32) if isinstance(obs, jax.Array) else np.asarray(obs, np.float32)

    @functools.cached_property
    def _convert(self) -> Callable[[np.ndarray], np.ndarray]:
        return make_converter(self.actions)

    def deterministic(self) -> Callable[[Float[Array, "... obs"]], Num[Array, "..."]]:
        """Returns a traceable function, observations -> actions of the deterministic policy."""
        network, actions, params, moments = self.network, self.actions, self.params, self.moments

        def act(obs: Float[Array, "... obs"]) -> Num[Array, "..."]:
            return _as_simulator(likeliest_action(network, params, moments, obs, actions), actions)

        return act


def likeliest_action(
    network: Policy, params: PyTree, moments: Moments, obs: Float[Array, "... obs"], actions: ActionSpace
) -> Num[Array, "... action"]:
    """Computes flat actions of the deterministic policy, in simulator units."""
    return to_simulator(network.apply(params, normalize(obs, moments)).mode(), actions)


def _flatten_in_jax(observations: Observations, value: Any) -> Float[Array, "... obs"]:
    """Like `Observations.flatten` for JAX arrays, which may be traced: invalid choices become zeros."""
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
    """Converts flat actions to the simulator's shape and choice numbers, and to its dtype if JAX supports it."""
    action = action.reshape((*action.shape[:-1], *actions.shape_of_one))
    if actions.counts:
        integer = jax.dtypes.canonicalize_dtype(np.int64)
        if np.any(actions.low < np.iinfo(integer).min) or np.any(actions.high > np.iinfo(integer).max):
            raise ValueError(
                f"actions range from {actions.low.min()} to {actions.high.max()}, beyond JAX's {integer}; pass NumPy "
                "observations instead"
            )
        return action + actions.low.astype(integer).reshape(actions.shape_of_one)
    return action.astype(jax.dtypes.canonicalize_dtype(actions.dtype))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _predict(
    maker: PolicyMaker, observation_size: int, actions: tuple, params: PyTree, moments: Moments, obs: Array
) -> tuple[Distribution, Array]:
    """Computes a distribution and its mode; compiled once for all policies of the same maker and sizes."""
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
