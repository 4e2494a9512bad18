"""Steps simulators that are single `gymnasium.Env` objects."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxtrpo.config.messages import short
from jaxtrpo.envs.gymnasium.actions import Actions, action_space_of
from jaxtrpo.envs.gymnasium.attributes import set_attributes
from jaxtrpo.envs.gymnasium.errors import RAISED, SimulatorError, simulator_error
from jaxtrpo.envs.gymnasium.observations import observations_of
from jaxtrpo.envs.gymnasium.shared_arrays import Rows


class SingleEnvs:
    """Steps the environments `start` to `stop - 1` by one simulator each (see `steppers.Stepper`).

    Args:
      name: name of the environment, for messages.
      make: creates a simulator.
      rows: rows of all environments.
      start: first environment.
      stop: environment after the last.
      info: entries of `info` to report at the end of episodes.

    Raises:
      SimulatorError: in every method, if a simulator fails; the object cannot be used after that.
    """

    def __init__(
        self, name: str, make: Callable[[], Any], rows: Rows, start: int, stop: int, info: tuple[str, ...] = ()
    ):
        self.name, self.rows, self.start, self.stop, self.info = name, rows, start, stop, info
        self.infos: tuple[Any, ...] = ()  # of the last step
        self.envs: list[Any] = []
        try:
            for _ in range(start, stop):
                self.envs.append(make())
        except RAISED as error:
            self.close()
            raise simulator_error(name, "creating the environment", error) from error
        self.observations = observations_of(self.envs[0].observation_space)
        self.actions = Actions(action_space_of(self.envs[0].action_space))
        self._shares: dict[tuple[int, int], tuple[Rows, list[Callable], list[Any]]] = {}

    def reset(self) -> None:
        """Starts the first episodes, with the seeds in the rows."""
        rows, envs = self.rows, slice(self.start, self.stop)
        first = [self._reset(env, seed=int(seed)) for env, seed in zip(self.envs, rows.seed[envs], strict=True)]
        self._write(rows.obs[envs], rows.pixels[envs], first)
        rows.final_obs[envs], rows.final_pixels[envs] = rows.obs[envs], rows.pixels[envs]
        rows.elapsed[envs] = 0

    def step(self, start: int, stop: int) -> None:
        """Steps the environments `start` to `stop - 1`, with automatic resets."""
        rows, steps, envs = self._share(start, stop)
        actions = self.actions.each(rows.action)
        try:
            results = [step(action) for step, action in zip(steps, actions, strict=True)]
        except RAISED as error:
            raise simulator_error(self.name, "step()", error) from error
        try:
            observations, rewards, terminated, truncated, infos = zip(*results, strict=True)
        except (TypeError, ValueError):
            raise SimulatorError(_wrong_step_result(self.name, results)) from None
        self.infos = infos
        self._write(rows.final_obs, rows.final_pixels, observations)
        rows.obs[:], rows.pixels[:] = rows.final_obs, rows.final_pixels
        self._write_rewards(rows.reward, rewards)
        self._write_flags(rows.terminated, "terminated", terminated)
        self._write_flags(rows.truncated, "truncated", truncated)
        self._finish(rows, envs, infos)  # not `self.infos`, which the thread of another actor may have replaced

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Sets attributes of every simulator."""
        for env in self.envs:
            set_attributes(self.name, env, attributes)

    def reports(self, entry: str) -> bool:
        """Returns whether `info` of the last step has an entry."""
        return all(isinstance(info, Mapping) and entry in info for info in self.infos)

    def close(self) -> None:
        """Closes every simulator and ignores exceptions."""
        for env in self.envs:
            try:
                env.close()
            except RAISED:
                continue

    def _share(self, start: int, stop: int) -> tuple[Rows, list[Callable], list[Any]]:
        """Returns the rows, `step` functions and simulators of some environments."""
        share = self._shares.get((start, stop))
        if share is None:
            envs = self.envs[start - self.start : stop - self.start]
            rows = Rows(*(array[start:stop] for array in self.rows))
            share = self._shares[start, stop] = rows, [env.step for env in envs], envs
        return share

    def _finish(self, rows: Rows, envs: list[Any], infos: tuple[Any, ...]) -> None:
        rows.elapsed[:] += 1
        np.logical_or(rows.truncated, rows.end, out=rows.truncated)
        np.greater(rows.truncated, rows.terminated, out=rows.truncated)  # unless terminated
        done = (rows.terminated | rows.truncated).nonzero()[0]
        if len(done) == 0:
            return
        for column, entry in enumerate(self.info):
            for i in done:
                rows.info[i, column] = as_float(infos[i].get(entry) if isinstance(infos[i], Mapping) else None)
        first = np.empty((len(done), self.observations.size), np.float32)
        pixels = np.empty((len(done), self.observations.pixels), np.uint8)
        self._write(first, pixels, [self._reset(envs[i]) for i in done])
        rows.obs[done], rows.pixels[done] = first, pixels
        rows.elapsed[done] = 0

    def _reset(self, env: Any, **arguments: int) -> Any:
        try:
            result = env.reset(**arguments)
        except RAISED as error:
            raise simulator_error(self.name, "reset()", error) from error
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            raise SimulatorError(f"{self.name}: reset() must return (observation, info), but returned {short(result)}")
        return result[0]

    def _write(self, into: np.ndarray, pixels: np.ndarray, observations: Any) -> None:
        try:
            self.observations.write(into, pixels, observations)
        except ValueError as error:
            raise SimulatorError(f"{self.name}: {error}") from None
        require_finite(self.name, "observation", into)

    def _write_rewards(self, into: np.ndarray, rewards: tuple[Any, ...]) -> None:
        for reward in rewards:
            if type(reward) not in _NUMBERS and not _is_number(reward):
                several = getattr(reward, "size", 1) > 1
                hint = "; weight several rewards with mo_gymnasium.wrappers.LinearReward or the like" if several else ""
                raise SimulatorError(f"{self.name}: the reward must be a number, but is {short(reward, 60)}{hint}")
        try:
            into[:] = rewards
        except OverflowError:  # an integer that no float can hold
            into[:] = math.inf
        require_finite(self.name, "reward", into)

    def _write_flags(self, into: np.ndarray, which: str, flags: tuple[Any, ...]) -> None:
        for flag in flags:
            if type(flag) not in _FLAGS and not _is_number(flag):
                raise SimulatorError(f"{self.name}: step() must return a bool for {which}, not {short(flag)}")
        into[:] = flags


_NUMBERS = frozenset([float, int, bool, np.float64, np.float32, np.int64, np.int32, np.bool_])
_FLAGS = frozenset([bool, np.bool_, int, np.int64, np.int32])


def _is_number(value: Any) -> bool:
    if isinstance(value, numbers.Real):
        return True
    return getattr(value, "shape", None) == () and np.asarray(value).dtype.kind in "fiub"


def as_float(value: Any) -> float:
    """Returns the value of an entry of `info`, or NaN if that is not a number."""
    try:
        array = np.asarray(value)
    except ValueError:  # ragged lists
        return math.nan
    return float(array.reshape(())) if array.size == 1 and array.dtype.kind in "fiub" else math.nan


def require_finite(name: str, what: str, array: np.ndarray) -> None:
    """Raises `SimulatorError` if `array`, which a simulator returned, holds NaN or infinity.

    An unknown simulator cannot be trusted to recover from that.
    """
    if not np.logical_and.reduce(np.isfinite(array), axis=None):
        bad = array[~np.isfinite(array)][0]
        row = array if array.ndim == 1 else array[~np.isfinite(array).all(axis=-1)][0]
        raise SimulatorError(f"{name}: {what} contains {bad}, but must be finite: {short(row)}")


def _wrong_step_result(name: str, results: list[Any]) -> str:
    wrong = next((r for r in results if not isinstance(r, tuple) or len(r) != 5), results[0])
    if isinstance(wrong, tuple) and len(wrong) == 4:
        return (
            f"{name}: step() returned four values, as in the old gym API; it must return "
            "(observation, reward, terminated, truncated, info)"
        )
    return f"{name}: step() must return (observation, reward, terminated, truncated, info), not {short(wrong)}"
