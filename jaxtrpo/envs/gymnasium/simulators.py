"""The simulators of an environment, which compiled code refers to by handles."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from jaxtrpo.envs.gymnasium.errors import RAISED, SimulatorError, simulator_error
from jaxtrpo.envs.gymnasium.shared_arrays import Rows
from jaxtrpo.envs.gymnasium.steppers import Stepper, make_stepper
from jaxtrpo.envs.gymnasium.stepping_plan import SteppingPlan
from jaxtrpo.envs.gymnasium.workers import Workers

HANDLE_SIZE = 4  # uint32: number of the host, generation, index of the environment, steps taken
_host_numbers = itertools.count(1)
# Starts at random, so that a handle saved by another process is not valid here.
_generations = itertools.count(int.from_bytes(os.urandom(3), "little"))
hosts: weakref.WeakValueDictionary[int, Host] = weakref.WeakValueDictionary()


class Host:
    """Owns the simulators; compiled code calls it from any thread, and it never calls JAX.

    Attributes:
      failure: first error of a simulator, after which every call fails.
    """

    def __init__(self, plan: SteppingPlan, attributes: Mapping[str, Any] = MappingProxyType({})):
        """Takes how to make the simulators, and attributes to set in them when they are started."""
        self.plan, self.number = plan, next(_host_numbers)
        self.failure: SimulatorError | None = None
        self._running: _Running | None = None
        self.attributes = dict(attributes)  # of simulators that are started later
        self.times_changed = 0  # how often attributes were set
        self._lock = threading.Lock()
        hosts[self.number] = self

    def reset(self, keys: np.ndarray, handle: np.ndarray, obs: np.ndarray, *pixels: np.ndarray) -> None:
        """Starts one simulator for each of `keys` uint32 [env, 2], after closing the previous ones."""
        self._require_working()
        with self._lock:
            previous, self._running = self._running, None
        if previous is not None:
            previous.stepper.close()
        try:
            running = _Running(self.plan, self.number, len(keys))
            with self._lock:
                self._running = running
            running.rows.seed[:] = keys[:, 1] & 0x7FFFFFFF  # some simulators reject larger seeds
            if self.attributes:
                running.stepper.set_attributes(self.attributes)
            running.stepper.reset()
        except RAISED as error:
            raise self._fail(error, "starting") from error
        handle[:] = running.handles
        obs[:] = running.rows.obs
        for array in pixels:
            array[:] = running.rows.pixels

    def step(self, handle: np.ndarray, action: np.ndarray, elapsed: np.ndarray, *results: np.ndarray) -> None:
        """Steps the environments of `handle`; for `results` see `_Share`."""
        self._require_working()
        running = self._running
        share = None if running is None else running.share(int(handle[0, 2]), len(handle))
        if running is None or share is None or share.handles.tobytes() != handle.tobytes():
            raise SimulatorError(
                f"{self.plan.source.name}: this state is stale: its simulators were reset, closed or stepped since, "
                "and cannot go back; use copy() of the environment for separate simulators"
            )
        try:
            running.step(share, action, elapsed, results)
        except RAISED as error:
            raise self._fail(error, "stepping") from error

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Sets attributes of all simulators, now and after a reset."""
        self._require_working()
        self.attributes |= attributes
        running = self._running
        try:
            if running is not None:
                running.stepper.set_attributes(attributes)
        except RAISED as error:
            raise self._fail(error, "setting attributes") from error
        self.times_changed += 1

    def close(self) -> None:
        """Closes the simulators; a reset starts new ones."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.stepper.close()

    def abandon(self) -> None:
        """Closes the simulators for good: every later call fails."""
        with self._lock:
            self.failure = self.failure or SimulatorError(f"{self.plan.source.name} was closed")
        self.close()

    def _require_working(self) -> None:
        if self.failure is not None:
            raise SimulatorError(str(self.failure))

    def _fail(self, error: BaseException, action: str) -> SimulatorError:
        if not isinstance(error, SimulatorError):
            error = simulator_error(self.plan.source.name, action, error)
        with self._lock:
            self.failure = self.failure or error
            running = self._running
        if running is not None and isinstance(running.stepper, Workers):
            running.stepper.kill()
        return self.failure


class _Share(NamedTuple):
    """Environments that compiled code steps with one call: those of an actor."""

    start: int
    stop: int
    rows: Rows  # of these environments only, like the following
    handles: np.ndarray
    # In the order of `EnvState`, up to `elapsed`; then `info`, and `pixels` and `final_pixels`, if there are any.
    results: tuple[np.ndarray, ...]


class _Running:
    """Running simulators and their rows."""

    def __init__(self, plan: SteppingPlan, host: int, num_envs: int):
        configs, in_processes = plan.steppers(num_envs)
        self.stepper: Stepper
        if in_processes:
            self.stepper = Workers(configs, plan.sizes(num_envs), plan.timeout)
            self.rows = self.stepper.rows
        else:
            self.rows = plan.sizes(num_envs).on(bytearray(plan.sizes(num_envs).nbytes()))
            self.stepper = make_stepper(configs[0], self.rows)
        self.handles = np.zeros((num_envs, HANDLE_SIZE), np.uint32)
        self.handles[:, 0], self.handles[:, 1] = host, next(_generations)
        self.handles[:, 2] = np.arange(num_envs)
        self._shares: dict[tuple[int, int], _Share] = {}
        self._last = plan.episode_length - 1

    def share(self, start: int, num: int) -> _Share:
        """Returns the share of `num` environments from `start` on."""
        share = self._shares.get((start, num))
        if share is None:
            envs = slice(start, start + num)
            rows, handles = Rows(*(array[envs] for array in self.rows)), self.handles[envs]
            results = (handles, rows.obs, rows.final_obs, rows.reward, rows.terminated, rows.truncated, rows.invalid)
            info = (rows.info,) if rows.info.size else ()
            images = (rows.pixels, rows.final_pixels) if rows.pixels.size else ()
            share = self._shares[start, num] = _Share(
                start, start + num, rows, handles, (*results, rows.elapsed, *info, *images)
            )
        return share

    def step(self, share: _Share, action: np.ndarray, elapsed: np.ndarray, results: tuple[np.ndarray, ...]) -> None:
        share.handles[:, 3] += 1
        rows = share.rows
        rows.action[:] = action
        # Rollouts truncate an episode early by passing a larger `elapsed`.
        np.greater_equal(np.maximum(elapsed, rows.elapsed), self._last, out=rows.end)
        self.stepper.step(share.start, share.stop)
        for result, row in zip(results, share.results, strict=True):
            result[:] = row
