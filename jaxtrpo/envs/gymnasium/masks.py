"""Action masks of Gymnasium environments, by the three conventions in use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxtrpo.envs.observation_space import VECTOR
from jaxtrpo.envs.observations import MASK, Observations

if TYPE_CHECKING:  # keeps worker processes free of JAX
    from jaxtrpo.envs import base

METHOD = "action_masks"
OBSERVATION = "observation"  # entry beside the mask
# Conventions, by which simulators say which choices are legal.
IN_OBSERVATION, BY_METHOD, IN_INFO = "observation", "method", "info"


def find_masks(env: gymnasium.Env) -> str | None:
    """Returns the convention by which an environment says which choices are legal; None if it does not.

    `IN_OBSERVATION`: a Dict observation has the entry `action_mask` (PettingZoo). `BY_METHOD`: the environment has the
    method `action_masks()` (sb3-contrib). `IN_INFO`: `info` has the entry `action_mask` (Gymnasium's Taxi).
    """
    if not _are_choices(env.action_space):
        return None
    if _observes_mask(env.observation_space):
        return IN_OBSERVATION
    with contextlib.suppress(AttributeError):
        env.get_wrapper_attr(METHOD)
        return BY_METHOD
    return IN_INFO if _tells_mask(env) else None


def masks_vector(env: Any, observation_space: str, action_space: str) -> bool:
    """Returns whether a vector environment seems to say which choices are legal.

    Of the conventions of `find_masks`, a method is only found in a `SyncVectorEnv`.

    Args:
      env: the vector environment, which is reset.
      observation_space: name of the attribute that is the observation space of one environment.
      action_space: likewise of the action space.
    """
    if isinstance(env.unwrapped, gymnasium.vector.SyncVectorEnv):
        return find_masks(env.unwrapped.envs[0]) is not None
    if not _are_choices(getattr(env, action_space)):
        return False
    return _observes_mask(getattr(env, observation_space)) or _tells_mask(env)


def _are_choices(action_space: Any) -> bool:
    return isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete)


def _observes_mask(observation_space: Any) -> bool:
    return isinstance(observation_space, spaces.Dict) and MASK in observation_space.spaces


def _tells_mask(env: Any) -> bool:
    """Resets an environment, and returns whether its `info` has a mask; that of vector environments may be a list."""
    try:
        _, info = env.reset(seed=0)
    except Exception:  # steps of a new simulator will show what is wrong, and say so
        return False
    first = info[0] if isinstance(info, list) and info else info
    return isinstance(first, Mapping) and MASK in first


class ActionMask(gymnasium.Wrapper):
    """Observes a Dict of `action_mask`, int8 with one entry per choice, and `observation`, without the mask."""

    def __init__(self, env: gymnasium.Env, convention: str):
        super().__init__(env)
        self._convention = convention
        space: Any = env.action_space
        self._counts = np.ravel(space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n)
        seen: Any = env.observation_space
        if convention == IN_OBSERVATION:
            # A list of pairs, since Gymnasium sorts a dictionary, and columns would be others than in `observations`.
            seen = spaces.Dict([(name, part) for name, part in seen.spaces.items() if name != MASK])
        self.observation_space = spaces.Dict(
            {MASK: spaces.Box(0, 1, (int(self._counts.sum()),), np.int8), OBSERVATION: seen}
        )

    def reset(self, **arguments: Any) -> tuple[Any, dict]:
        """See `gymnasium.Env`."""
        obs, info = self.env.reset(**arguments)
        return self._with_mask(obs, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        """See `gymnasium.Env`."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        # Nothing is chosen where an episode has ended, so there need not be a mask.
        return self._with_mask(obs, info, over=bool(terminated or truncated)), reward, terminated, truncated, info

    def _with_mask(self, obs: Any, info: Any, *, over: bool = False) -> dict[str, Any]:
        if self._convention == IN_OBSERVATION:
            given = obs[MASK]
            obs = {name: part for name, part in obs.items() if name != MASK}
        else:
            given = self.env.get_wrapper_attr(METHOD)() if self._convention == BY_METHOD else info.get(MASK)
        size = int(self._counts.sum())
        if given is None:
            if not over:
                raise ValueError(f"info has no {MASK}, although the info of the first episode had it")
            return {MASK: np.ones(size, np.int8), OBSERVATION: obs}
        mask = np.ravel(np.concatenate(given) if isinstance(given, tuple) else given).astype(bool)
        if mask.shape != (size,):
            raise ValueError(f"the action mask has {mask.size} entries, but there are {size} choices")
        if not over and not all(part.any() for part in np.split(mask, np.cumsum(self._counts)[:-1])):
            raise ValueError("the action mask leaves no legal action")
        return {MASK: mask.astype(np.int8), OBSERVATION: obs}


class MaskedEnvironment:
    """An environment whose rows of observations begin with masks, which become `EnvState.mask`.

    It has the abilities of the environment that it wraps (see `jaxtrpo.envs.abilities`).
    """

    masks_actions, saves_state = True, False

    def __init__(self, env: Any, observations: Observations):
        """Wraps `env`, whose simulators are wrapped in `ActionMask`; `observations` are those without the mask."""
        self._env, self.observations = env, observations
        self.name, self.episode_length, self.action_size = env.name, env.episode_length, env.action_size
        self.action_low, self.action_high = env.action_low, env.action_high
        # Each by name: protocols do not see what `__getattr__` would return.
        self.action_counts, self.action_shape = env.action_counts, env.action_shape
        self.wastes_steps, self.info_columns = env.wastes_steps, env.info_columns
        self.envs_per_simulator = env.envs_per_simulator
        self._choices = sum(env.action_counts)
        self.observation_space = observations.space
        self.observation_size = self.observation_space.size
        # Images beside a mask are named after a longer path.
        self._names = dict(zip(_images(observations), _images(env.observations), strict=True))

    @property
    def failure(self) -> Exception | None:
        """See `jaxtrpo.envs.abilities.Fallible`."""
        return self._env.failure

    def reset(self, key: Any, num_envs: int) -> base.EnvState:
        """Starts `num_envs` episodes."""
        return self._shown(self._env.reset(key, num_envs))

    def step(self, state: base.EnvState, action: Any) -> base.EnvState:
        """Applies one action to each environment."""
        return self._shown(self._env.step(state.physics._replace(elapsed=state.elapsed), action))

    def info(self, state: base.EnvState) -> dict[str, Any]:
        """See `jaxtrpo.envs.abilities.Informative`."""
        return self._env.info(state.physics)

    def with_info(self, names: tuple[str, ...], *, success: bool) -> MaskedEnvironment:
        """See `jaxtrpo.envs.abilities.Informative`."""
        return self._with(self._env.with_info(names, success=success))

    def copy(self) -> MaskedEnvironment:
        """See `jaxtrpo.envs.abilities.Copyable`."""
        return self._with(self._env.copy())

    def for_groups(self, groups: int) -> MaskedEnvironment:
        """See `jaxtrpo.envs.abilities.Grouped`."""
        return self._with(self._env.for_groups(groups))

    def flatten(self, obs: Any) -> Any:
        """Converts an observation in the simulator's form, or a batch of them, without the mask."""
        return self.observations.flatten(obs)

    def watched(
        self, act: Callable[..., Any], seed: int, width: int, height: int
    ) -> tuple[float, Iterator[tuple[np.ndarray, float]]]:
        """See `jaxtrpo.envs.abilities.Watchable`; `act` takes the mask as its second argument."""
        return self._env.watched(lambda obs: act(self._seen(obs), self._mask(obs)), seed, width, height)

    def close(self) -> None:
        """See `jaxtrpo.envs.abilities.Closeable`."""
        self._env.close()

    def abandon(self) -> None:
        """See `jaxtrpo.envs.abilities.Abandonable`."""
        self._env.abandon()

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Sets attributes of every simulator; see `set_env`."""
        self._env.set_attributes(attributes)

    @property
    def times_changed(self) -> int:
        """How often attributes of the simulators were set."""
        return self._env.times_changed

    def _with(self, env: Any) -> MaskedEnvironment:
        return self if env is self._env else MaskedEnvironment(env, self.observations)

    def _mask(self, obs: Any) -> Any:
        return (obs[VECTOR] if self._names else obs)[:, : self._choices] > 0.5

    def _seen(self, obs: Any) -> Any:
        """Returns observations without the mask."""
        if not self._names:
            return obs[:, self._choices :]
        arrays = {name: obs[theirs] for name, theirs in self._names.items()}
        return self.observation_space.joined({VECTOR: obs[VECTOR][:, self._choices :], **arrays})

    def _shown(self, whole: base.EnvState) -> base.EnvState:
        return whole._replace(
            physics=whole,
            obs=self._seen(whole.obs),
            final_obs=self._seen(whole.final_obs),
            mask=self._mask(whole.obs),
        )


def _images(observations: Observations) -> list[str]:
    return [leaf.name for leaf in observations.space.images]


def draw_legal(rows: np.ndarray, counts: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Draws a legal action [env, coordinate] for each row of observations, which begins with a mask."""
    parts = np.split(rows[:, : sum(counts)], np.cumsum(counts)[:-1], axis=1)
    return np.stack([np.argmax(part * rng.random(part.shape), axis=1) for part in parts], axis=1)


def without_mask(observations: Observations) -> Observations:
    """Returns a description without the part that is the mask."""
    return Observations([part for part in observations.parts if part.path[:1] != (MASK,)], observations.description)
