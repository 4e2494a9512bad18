"""gymnax environments, which are JAX programs."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, SequenceKey, tree_leaves_with_path
from jaxtyping import Array, Bool, Float, PyTree, UInt32

from jaxtrpo.config.checks import plain, require_bool, require_number, require_whole
from jaxtrpo.envs import base
from jaxtrpo.envs._support.names import unknown_name
from jaxtrpo.envs.observation_space import FLOAT, channels_last, flat_space, image_axes
from jaxtrpo.envs.observations import Observations, Part

NEVER = np.iinfo(np.int32).max
LIMIT = "max_steps_in_episode"


class GymnaxState(NamedTuple):
    """`EnvState.physics` of a gymnax environment."""

    state: PyTree  # gymnax's own state
    key: UInt32[Array, "env 2"]  # randomness of its steps
    parameters: dict[str, Array]  # those of gymnax that are numbers, but for the time limit


def make_gymnax_env(name: str, **options: Any) -> GymnaxEnvironment:
    """Creates an environment that is built into gymnax or registered with `gymnax.register`.

    Args:
      name: name of the environment, such as "CartPole-v1" or "Breakout-MinAtar".
      **options: environment parameters that replace the defaults, such as `max_steps_in_episode`.

    Raises:
      ValueError: gymnax 1.0 is not installed; there is no such environment, in which case the message suggests similar
        names; or the environment has no such parameter, or one of another type.
    """
    try:
        gymnax: Any = importlib.import_module("gymnax")  # optional dependency, not installed for type checking
    except ModuleNotFoundError as error:
        if error.name != "gymnax":
            raise
        raise ValueError(f"gymnax:{name} needs the package gymnax: pip install 'gymnax>=1.0'") from None
    if name not in gymnax.registered_envs:
        raise ValueError(unknown_name(name, gymnax.registered_envs, prefix="gymnax:"))
    env, params = gymnax.make(name)
    if not hasattr(env, "is_truncated"):
        raise ValueError(f"gymnax:{name} needs gymnax 1.0 or newer, which separates termination from truncation")
    for option, value in options.items():
        if option not in vars(params):
            raise ValueError(f"gymnax:{name} has no parameter {option}; it has {', '.join(vars(params))}")
        where, usual = f"gymnax:{name}: {option}", vars(params)[option]
        if option == LIMIT:
            require_whole(1, NEVER, **{where: value})
        elif isinstance(usual, bool):
            require_bool(**{where: value})
        elif isinstance(usual, int | float):
            require_number("a number", lambda value: True, **{where: value})
            if isinstance(usual, float):
                options = {**options, option: float(plain(value))}  # which `set_env` may change to a fraction
    return GymnaxEnvironment(f"gymnax:{name}", env, params.replace(**options))


class GymnaxEnvironment:
    """A `gymnax.environments.environment.Environment` (see `jaxtrpo.envs.base.Environment`).

    Observations with three axes and bounds 0 and 1 are images, bool in MinAtar; others are flattened, and those of a
    Discrete space become one-hot vectors. Numbers among the parameters are part of the state (see `jaxtrpo.set_env`).
    """

    is_program = True

    def __init__(self, name: str, env: Any, params: Any):
        spaces: Any = importlib.import_module("gymnax.environments.spaces")
        self.name, self.env, self.params = name, env, params
        self.solves_equations = not type(env).__module__.startswith("gymnax.")  # those that a user registers may
        self.episode_length = min(int(getattr(params, LIMIT, NEVER)), NEVER)
        observations, actions = env.observation_space(params), env.action_space(params)
        self._one_hot = int(observations.n) if isinstance(observations, spaces.Discrete) else None
        self._image = _image_of(env, observations)
        if isinstance(actions, spaces.Discrete):
            self.action_counts: tuple[int, ...] = (int(actions.n),)
            self.action_shape: tuple[int, ...] = ()
            low, high = 0.0, actions.n - 1.0
        elif isinstance(actions, spaces.Box):
            self.action_counts, self.action_shape = (), tuple(actions.shape)
            low, high = actions.low, actions.high
        else:
            raise ValueError(f"{name}: the action space must be Box or Discrete, not {type(actions).__name__}")
        size = int(np.prod(self.action_shape))
        self.action_low, self.action_high = (
            np.broadcast_to(np.asarray(bound, np.float32), self.action_shape).reshape(size) for bound in (low, high)
        )
        self.action_size = size
        key = jax.ShapeDtypeStruct((1, 2), jnp.uint32)
        obs = jax.eval_shape(lambda keys: self._reset(keys, self._parameters(1))[1], key)
        self.observation_space = flat_space(obs.shape[-1]) if self._image is None else self._image.space
        self.observation_size = self.observation_space.size
        self.observations = self._describe_observations() if self._image is None else self._image

    def reset(self, key: UInt32[Array, "2"], num_envs: int) -> base.EnvState:
        """Starts `num_envs` episodes."""
        parameters = self._parameters(num_envs)
        blank = base.blank(lambda keys: self._reset(keys, parameters)[0], num_envs)
        return base.start(key, num_envs, self._reset_rows, blank._replace(parameters=parameters))

    def step(self, state: base.EnvState, action: Float[Array, "env action"]) -> base.EnvState:
        """Applies one action to each environment."""
        before: GymnaxState = state.physics
        keys = jax.vmap(jax.random.split)(before.key)
        action = action.reshape(-1, *self.action_shape)
        action = action.astype(jnp.int32) if self.action_counts else action

        def step(key: Any, state: PyTree, action: Any, parameters: dict[str, Array]) -> Any:
            return self.env.step_env(key, state, action, self.params.replace(**parameters))

        obs, after, reward, terminated, _ = jax.vmap(step)(keys[:, 0], before.state, action, before.parameters)
        # Some environments change the dtype of their state in a step, which a compiled loop could not carry.
        after = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, before.state)
        seen = self._flatten(obs)
        moved = base.Transition(
            physics=GymnaxState(after, keys[:, 1], before.parameters),
            obs=seen,
            reward=reward.astype(jnp.float32),
            terminated=terminated.astype(bool),
            finite=base.all_within_bounds(seen) & jnp.isfinite(reward),
        )
        return base.advance(state, moved, self._reset_rows, self.episode_length)

    def _parameters(self, num_envs: int) -> dict[str, Array]:
        """Returns a row of parameters for each environment."""
        return {
            name: jnp.full(num_envs, value)
            for name, value in vars(self.params).items()
            if isinstance(value, bool | int | float) and name != LIMIT
        }

    def _reset(self, keys: UInt32[Array, "env 2"], parameters: dict[str, Array]) -> tuple[GymnaxState, PyTree]:
        pairs = jax.vmap(jax.random.split)(keys)

        def reset(key: Any, parameters: dict[str, Array]) -> Any:
            return self.env.reset_env(key, self.params.replace(**parameters))

        obs, state = jax.vmap(reset)(pairs[:, 0], parameters)
        return GymnaxState(jax.tree.map(jnp.asarray, state), pairs[:, 1], parameters), self._flatten(obs)

    def _reset_rows(
        self, keys: UInt32[Array, "env 2"], mask: Bool[Array, " env"], now: GymnaxState
    ) -> tuple[GymnaxState, PyTree]:
        first, obs = self._reset(keys, now.parameters)
        return base.choose_rows(mask, first, now), obs

    def _describe_observations(self) -> Observations | None:
        """Describes how `_flatten` flattens observations; None unless they consist of dictionaries and sequences."""
        if self._one_hot is not None:
            description = f"Discrete({self._one_hot})"
            return Observations([Part((), (), description, (self._one_hot,), (0,))], description)
        first, _ = jax.eval_shape(self.env.reset_env, jax.ShapeDtypeStruct((2,), jnp.uint32), self.params)
        leaves = tree_leaves_with_path(first)
        if not all(isinstance(key, DictKey | SequenceKey) for path, _ in leaves for key in path):
            return None
        parts = [Part(_keys(path), tuple(leaf.shape), f"Box{tuple(leaf.shape)}") for path, leaf in leaves]
        return Observations(parts, ", ".join(part.description for part in parts))

    def _flatten(self, obs: PyTree) -> PyTree:
        if self._image is not None:
            (leaf,) = self._image.space.leaves
            return {leaf.name: channels_last(obs, self._image.parts[0].axes).astype(leaf.dtype)}
        if self._one_hot is not None:
            return jax.nn.one_hot(obs, self._one_hot)
        leaves = [leaf.reshape(leaf.shape[0], -1).astype(jnp.float32) for leaf in jax.tree.leaves(obs)]
        return jnp.concatenate(leaves, axis=-1)


def _image_of(env: Any, space: Any) -> Observations | None:
    """Describes observations that are images; None if they are not."""
    shape = tuple(getattr(space, "shape", ()))
    if len(shape) != 3 or not (np.all(space.low == 0) and np.all(space.high == 1)) or not image_axes(shape):
        return None
    # MinAtar's channels say where objects are.
    dtype = "bool" if ".minatar." in type(env).__module__ else FLOAT
    description = f"Box{shape}"
    return Observations([Part((), shape, description, axes=image_axes(shape), dtype=dtype)], description)


def _keys(path: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the keys and indices that lead to a leaf of nested dictionaries and sequences."""
    return tuple(key.key if isinstance(key, DictKey) else key.idx for key in path)
