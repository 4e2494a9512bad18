"""Steps simulators that are a `gymnasium.vector.VectorEnv`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from jaxtrpo.config.messages import short
from jaxtrpo.envs.gymnasium.actions import Actions, action_space_of
from jaxtrpo.envs.gymnasium.attributes import set_attributes
from jaxtrpo.envs.gymnasium.errors import RAISED, SimulatorError, simulator_error
from jaxtrpo.envs.gymnasium.observations import observations_of
from jaxtrpo.envs.gymnasium.shared_arrays import Rows
from jaxtrpo.envs.gymnasium.single_envs import as_float, require_finite


class VectorEnvs:
    """Steps consecutive environments by vector environments (see `steppers.Stepper`).

    Args:
      name: name of the environment, for messages.
      make: number of environments -> a new vector environment.
      rows: rows of all environments.
      edges: first environment of each vector environment, then the end of the last one.
      episode_length: time limit in steps, applied here only in Gymnasium's DISABLED mode of automatic resets; in the
        other modes, the vector environment applies its own.
      info: entries of `info` to report at the end of episodes.

    Raises:
      SimulatorError: in every method, if a simulator fails; the object cannot be used after that.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[int], Any],
        rows: Rows,
        edges: Sequence[int],
        episode_length: int,
        info: tuple[str, ...] = (),
    ):
        self.edges, self.parts = list(edges), []
        try:
            for start, stop in zip(edges[:-1], edges[1:], strict=True):
                self.parts.append(_Vector(name, make(stop - start), rows, slice(start, stop), episode_length, info))
        except SimulatorError:
            self.close()
            raise
        except RAISED as error:
            self.close()
            raise simulator_error(name, "creating the vector environment", error) from error

    def reset(self) -> None:
        """Starts the first episodes; the seed of a vector environment is that of its first environment."""
        for part in self.parts:
            part.reset()

    def step(self, start: int, stop: int) -> None:
        """Steps the environments `start` to `stop - 1`, with automatic resets."""
        edges = self.edges[:-1]
        if start not in self.edges or stop not in self.edges:
            raise SimulatorError(
                f"environments {start} to {stop - 1} are not whole vector environments, which start at {edges}"
            )
        for part in self.parts[self.edges.index(start) : self.edges.index(stop)]:
            part.step()

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Sets attributes of every simulator."""
        for part in self.parts:
            set_attributes(part.name, part.env, attributes)

    def reports(self, entry: str) -> bool:
        """Returns whether `infos` of the last step have an entry."""
        infos = [part.infos if isinstance(part.infos, Mapping) else part.infos[0] for part in self.parts]
        return all(entry in info for info in infos)

    def close(self) -> None:
        """Closes every vector environment and ignores exceptions."""
        for part in self.parts:
            try:
                part.env.close()
            except RAISED:
                continue


def _of_ends(info: Any) -> Any:
    """Returns the infos of episodes that are over in SAME_STEP mode, where others are those of the next episodes."""
    if isinstance(info, Mapping):
        return info.get("final_info", {})
    return [each.get("final_info", each) for each in info]


def is_of_supersuit(env: Any) -> bool:
    """Returns whether SuperSuit made a vector environment, as of PettingZoo's agents.

    Its spaces are those of one agent, it does not say how it resets, and its infos are a list.
    """
    return type(getattr(env, "unwrapped", env)).__module__.partition(".")[0] == "supersuit"


def names_of_spaces(env: Any) -> tuple[str, str]:
    """Returns under which names a vector environment has the spaces of one of its environments."""
    return ("observation_space", "action_space") if is_of_supersuit(env) else SINGLE_SPACES


SINGLE_SPACES = ("single_observation_space", "single_action_space")


class _Vector:
    """One vector environment and its rows."""

    def __init__(self, name: str, env: Any, rows: Rows, envs: slice, episode_length: int, info: tuple[str, ...]):
        self.name, self.env, self.episode_length, self.info = name, env, episode_length, info
        self.infos: Any = {}  # of the last step
        self.rows = Rows(*(array[envs] for array in rows))
        observation_space, action_space = (getattr(env, space) for space in names_of_spaces(env))
        self.observations, self.actions = observations_of(observation_space), Actions(action_space_of(action_space))
        shape = self.observations.plain_shape
        self._batch_shape = None if shape is None else (len(self.rows.obs), *shape)
        self._done: np.ndarray | None = None  # in NEXT_STEP mode: mask of the episodes that ended with the last step
        self._action_dtype = env.action_space.dtype
        modes = gymnasium.vector.AutoresetMode
        mode = modes.SAME_STEP if is_of_supersuit(env) else env.metadata.get("autoreset_mode")
        finish = {
            modes.NEXT_STEP: self._next_step,
            modes.SAME_STEP: self._same_step,
            modes.DISABLED: self._disabled,
        }
        if mode not in finish:
            raise SimulatorError(
                f"{name}: metadata['autoreset_mode'] of the vector environment must be an AutoresetMode, not "
                f"{short(mode)}"
            )
        self._finish = finish[mode]

    def reset(self) -> None:
        rows, self._done = self.rows, None
        self._write(rows.obs, rows.pixels, self._call_reset(seed=int(rows.seed[0])))
        rows.final_obs[:], rows.final_pixels[:] = rows.obs, rows.pixels
        for flags in (rows.terminated, rows.truncated, rows.invalid, rows.elapsed):
            flags[:] = 0

    def step(self) -> None:
        rows = self.rows
        action = self.actions.batch(rows.action)
        if action.dtype != self._action_dtype:
            action = action.astype(self._action_dtype)
        try:
            result = self.env.step(action)
        except RAISED as error:
            raise simulator_error(self.name, "step()", error) from error
        if not isinstance(result, tuple) or len(result) != 5:
            raise SimulatorError(
                f"{self.name}: step() of the vector environment must return (observations, rewards, terminations, "
                f"truncations, infos), not {short(result)}"
            )
        obs, reward, terminated, truncated, info = result
        self.infos = info
        self._finish(obs, terminated, truncated, reward, info)

    def _next_step(self, obs: Any, terminated: Any, truncated: Any, reward: Any, info: dict) -> None:
        """Handles NEXT_STEP mode: the step after the end of an episode only resets it and is invalid."""
        rows, restarted = self.rows, self._done
        before = None if restarted is None else (rows.obs[restarted], rows.pixels[restarted])
        self._write(rows.obs, rows.pixels, obs)
        rows.final_obs[:], rows.final_pixels[:] = rows.obs, rows.pixels
        self._set_ends(terminated, truncated, reward)
        rows.elapsed[:] += 1
        rows.invalid[:] = False
        if restarted is not None and before is not None:
            rows.final_obs[restarted], rows.final_pixels[restarted] = before
            rows.invalid[restarted] = rows.truncated[restarted] = True
            rows.terminated[restarted] = False
            rows.reward[restarted] = 0
        done = rows.terminated | rows.truncated
        self._done = None
        if np.logical_or.reduce(done):
            rows.elapsed[done] = 0
            np.greater(done, rows.invalid, out=done)  # except in steps that only reset
            self._done = done if done.any() else None
            self._write_info(done, info)

    def _same_step(self, obs: Any, terminated: Any, truncated: Any, reward: Any, info: dict) -> None:
        rows = self.rows
        self._write(rows.obs, rows.pixels, obs)
        self._set_ends(terminated, truncated, reward)
        rows.final_obs[:], rows.final_pixels[:] = rows.obs, rows.pixels
        done = rows.terminated | rows.truncated
        for i in np.flatnonzero(done):
            self._write_final_obs(info, int(i))
        require_finite(self.name, "final_obs", rows.final_obs)
        self._write_info(done, _of_ends(info))
        rows.elapsed[:] = np.where(done, 0, rows.elapsed + 1)

    def _disabled(self, obs: Any, terminated: Any, truncated: Any, reward: Any, info: dict) -> None:
        rows = self.rows
        self._write(rows.final_obs, rows.final_pixels, obs)
        rows.obs[:], rows.pixels[:] = rows.final_obs, rows.final_pixels
        self._set_ends(terminated, truncated, reward)
        rows.elapsed[:] += 1
        rows.truncated[:] |= (rows.end | (rows.elapsed >= self.episode_length)) & ~rows.terminated
        done = rows.terminated | rows.truncated
        if done.any():
            self._write_info(done, info)
            first, pixels = np.empty_like(rows.obs), np.empty_like(rows.pixels)
            self._write(first, pixels, self._call_reset(options={"reset_mask": done.copy()}))
            rows.obs[done], rows.pixels[done] = first[done], pixels[done]
            rows.elapsed[done] = 0

    def _write_final_obs(self, info: dict, i: int) -> None:
        """Writes the last observation of the episode of environment i, which has already been reset."""
        final_obs, pixels = self.rows.final_obs[i : i + 1], self.rows.final_pixels[i : i + 1]
        if isinstance(info, list):
            last = info[i].get("final_obs", info[i].get("terminal_observation"))  # the latter in SuperSuit
            if last is not None:
                self.observations.write(final_obs, pixels, [last])
                return
            if is_of_supersuit(self.env):  # which only resets all agents together
                return
        given = info.get("final_obs") if isinstance(info, dict) else None
        if given is None:
            raise SimulatorError(f"{self.name}: infos of a vector environment in SAME_STEP mode must have 'final_obs'")
        try:
            if isinstance(given, np.ndarray) and given.dtype == object:
                self.observations.write(final_obs, pixels, [given[i]])
            else:
                all_obs, all_pixels = np.empty_like(self.rows.obs), np.empty_like(self.rows.pixels)
                self.observations.write_batch(all_obs, all_pixels, given)
                final_obs[:], pixels[:] = all_obs[i], all_pixels[i]
        except (ValueError, IndexError) as error:
            raise SimulatorError(f"{self.name}: final_obs of the vector environment: {error}") from None

    def _write_info(self, done: np.ndarray, info: Any) -> None:
        """Writes the entries of the episodes that are over; `info` holds arrays, or an array of one `info` each."""
        for column, entry in enumerate(self.info):
            for i in np.flatnonzero(done):
                if not isinstance(info, Mapping):
                    value = info[i].get(entry) if isinstance(info[i], Mapping) else None
                else:
                    has = np.broadcast_to(info.get(f"_{entry}", entry in info), done.shape)[i]
                    value = _of_one(info[entry], int(i)) if has else None
                self.rows.info[i, column] = as_float(value)

    def _call_reset(self, **arguments: Any) -> Any:
        try:
            result = self.env.reset(**arguments)
        except RAISED as error:
            raise simulator_error(self.name, "reset()", error) from error
        if not isinstance(result, tuple) or len(result) != 2:
            raise SimulatorError(f"{self.name}: reset() must return (observations, infos), not {short(result)}")
        return result[0]

    def _set_ends(self, terminated: Any, truncated: Any, reward: Any) -> None:
        rows = self.rows
        rows.terminated[:] = self._numbers("terminations", terminated)
        # An episode that was terminated is not truncated.
        np.greater(self._numbers("truncations", truncated), rows.terminated, out=rows.truncated)
        rows.reward[:] = self._numbers("rewards", reward)
        require_finite(self.name, "rewards", rows.reward)

    def _numbers(self, which: str, value: Any) -> np.ndarray:
        array = np.asarray(value)
        if array.shape != self.rows.reward.shape or array.dtype.kind not in "fiub":
            raise SimulatorError(
                f"{self.name}: {which} of the vector environment must be {len(self.rows.reward)} numbers, not "
                f"{short(value)}"
            )
        return array

    def _write(self, into: np.ndarray, pixels: np.ndarray, obs: Any) -> None:
        if type(obs) is np.ndarray and obs.shape == self._batch_shape and obs.dtype.kind in "fiub":
            into[:] = obs if obs.ndim == 2 else obs.reshape(into.shape)
        else:
            try:
                self.observations.write_batch(into, pixels, obs)
            except ValueError as error:
                raise SimulatorError(f"{self.name}: {error}") from None
        require_finite(self.name, "observation", into)


def _of_one(values: Any, i: int) -> Any:
    """Returns the entry of one environment; a value that is no sequence is that of all."""
    is_sequence = isinstance(values, list | tuple) or getattr(values, "ndim", 0) > 0
    return values[i] if is_sequence else values
