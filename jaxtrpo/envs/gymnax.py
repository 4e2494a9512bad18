"""Environments of gymnax, which are JAX programs."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, SequenceKey, tree_leaves_with_path
from jaxtyping import Array, Bool, Float, PyTree, UInt32

from jaxtrpo.envs import base
from jaxtrpo.envs._support.names import unknown_name
from jaxtrpo.envs.observations import Observations, Part

NEVER = np.iinfo(np.int32).max


class Physics(NamedTuple):
    """What gymnax carries, and the randomness of its steps."""

    state: PyTree
    key: UInt32[Array, "env 2"]


def make_gymnax_env(name: str, **options: Any) -> GymnaxEnvironment:
    """Makes an environment of gymnax, or one that was registered with `gymnax.register`.

    Args:
      name: such as "CartPole-v1" or "Breakout-MinAtar".
      **options: its parameters that shall be others than usual, such as `max_steps_in_episode`.

    Raises:
      ValueError: gymnax 1.0 is not installed, there is no such environment, whose message lists near names, or it has
        no such parameter.
    """
    try:
        gymnax: Any = importlib.import_module("gymnax")  # optional, and not there where types are checked
    except ModuleNotFoundError as error:
        if error.name != "gymnax":
            raise
        raise ValueError(f"gymnax:{name} needs the package gymnax: pip install 'gymnax>=1.0'") from None
    if name not in gymnax.registered_envs:
        raise ValueError(unknown_name(name, gymnax.registered_envs, prefix="gymnax:"))
    env, params = gymnax.make(name)
    if not hasattr(env, "is_truncated"):
        raise ValueError(f"gymnax:{name} needs gymnax 1.0 or newer, which tells terminations from time limits")
    unknown = [option for option in options if not hasattr(params, option)]
    if unknown:
        known = ", ".join(vars(params))
        raise ValueError(f"gymnax:{name} has no parameter {unknown[0]}; it has {known}")
    return GymnaxEnvironment(f"gymnax:{name}", env, params.replace(**options))


class GymnaxEnvironment:
    """A `gymnax.environments.environment.Environment` (see `jaxtrpo.envs.base.Environment`).

    Observations of any shape are flattened, and numbers of a Discrete space become one-hot.
    """

    is_program = True

    def __init__(self, name: str, env: Any, params: Any):
        spaces: Any = importlib.import_module("gymnax.environments.spaces")
        self.name, self.env, self.params = name, env, params
        self.episode_length = min(int(getattr(params, "max_steps_in_episode", NEVER)), NEVER)
        seen, done = env.observation_space(params), env.action_space(params)
        self._one_hot = int(seen.n) if isinstance(seen, spaces.Discrete) else None
        if isinstance(done, spaces.Discrete):
            self.action_counts: tuple[int, ...] = (int(done.n),)
            self.action_shape: tuple[int, ...] = ()
            low, high = 0.0, done.n - 1.0
        elif isinstance(done, spaces.Box):
            self.action_counts, self.action_shape = (), tuple(done.shape)
            low, high = done.low, done.high
        else:
            raise ValueError(f"{name}: actions must be a Box or Discrete, not {type(done).__name__}")
        size = int(np.prod(self.action_shape))
        self.action_low, self.action_high = (
            np.broadcast_to(np.asarray(each, np.float32), self.action_shape).reshape(size) for each in (low, high)
        )
        self.action_size = size
        key = jax.ShapeDtypeStruct((1, 2), jnp.uint32)
        self.observation_size = jax.eval_shape(lambda keys: self._reset(keys)[1], key).shape[-1]
        self.observations = self._described()

    def reset(self, key: UInt32[Array, "2"], num_envs: int) -> base.EnvState:
        """Starts `num_envs` episodes."""
        return base.start(key, num_envs, self._reset_rows, base.blank(lambda keys: self._reset(keys)[0], num_envs))

    def step(self, state: base.EnvState, action: Float[Array, "env action"]) -> base.EnvState:
        """Applies one action to each environment."""
        before: Physics = state.physics
        keys = jax.vmap(jax.random.split)(before.key)
        acted = action.reshape(-1, *self.action_shape)
        acted = acted.astype(jnp.int32) if self.action_counts else acted
        obs, after, reward, terminated, _ = jax.vmap(self.env.step_env, (0, 0, 0, None))(
            keys[:, 0], before.state, acted, self.params
        )
        # Some environments step from one type of number to another, with which no loop could carry the state.
        after = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, before.state)
        seen = self._flat(obs)
        moved = base.Transition(
            physics=Physics(after, keys[:, 1]),
            obs=seen,
            reward=reward.astype(jnp.float32),
            terminated=terminated.astype(bool),
            finite=jnp.all(jnp.abs(seen) <= base.LARGEST_OBSERVATION, axis=-1) & jnp.isfinite(reward),
        )
        return base.advance(state, moved, self._reset_rows, self.episode_length)

    def _reset(self, keys: UInt32[Array, "env 2"]) -> tuple[Physics, Float[Array, "env obs"]]:
        both = jax.vmap(jax.random.split)(keys)
        obs, state = jax.vmap(self.env.reset_env, (0, None))(both[:, 0], self.params)
        return Physics(jax.tree.map(jnp.asarray, state), both[:, 1]), self._flat(obs)

    def _reset_rows(
        self, keys: UInt32[Array, "env 2"], mask: Bool[Array, " env"], now: Physics
    ) -> tuple[Physics, Float[Array, "env obs"]]:
        first, obs = self._reset(keys)
        return base.choose_rows(mask, first, now), obs

    def _described(self) -> Observations | None:
        """The observations of gymnax itself, as `_flat` flattens them; None where nobody could write one down."""
        if self._one_hot is not None:
            words = f"Discrete({self._one_hot})"
            return Observations([Part((), (), words, (self._one_hot,), (0,))], words)
        first, _ = jax.eval_shape(self.env.reset_env, jax.ShapeDtypeStruct((2,), jnp.uint32), self.params)
        leaves = tree_leaves_with_path(first)
        if not all(isinstance(key, DictKey | SequenceKey) for path, _ in leaves for key in path):
            return None
        parts = [Part(_keys(path), tuple(leaf.shape), f"Box{tuple(leaf.shape)}") for path, leaf in leaves]
        return Observations(parts, ", ".join(part.words for part in parts))

    def _flat(self, obs: PyTree) -> Float[Array, "env obs"]:
        if self._one_hot is not None:
            return jax.nn.one_hot(obs, self._one_hot)
        leaves = [leaf.reshape(leaf.shape[0], -1).astype(jnp.float32) for leaf in jax.tree.leaves(obs)]
        return jnp.concatenate(leaves, axis=-1)


def _keys(path: tuple[Any, ...]) -> tuple[Any, ...]:
    """What one writes in brackets to get to a leaf of dictionaries and sequences."""
    return tuple(key.key if isinstance(key, DictKey) else key.idx for key in path)
