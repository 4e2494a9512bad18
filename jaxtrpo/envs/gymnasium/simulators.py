"""The one set of simulators that an environment has, behind the handles that compiled code carries."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from typing import NamedTuple

import numpy as np

from jaxtrpo.envs.gymnasium.errors import SimulatorError, raised
from jaxtrpo.envs.gymnasium.shared_arrays import Rows
from jaxtrpo.envs.gymnasium.steppers import Stepper, make_stepper
from jaxtrpo.envs.gymnasium.stepping_plan import Plan
from jaxtrpo.envs.gymnasium.workers import Workers

HANDLE_SIZE = 4  # uint32: number of the host, of the set, of the environment, and of the step it waits for

_numbers = itertools.count(1)
# Not from 1, so that a handle that another process wrote down means nothing here.
_sets = itertools.count(int.from_bytes(os.urandom(3), "little"))
hosts: weakref.WeakValueDictionary[int, Host] = weakref.WeakValueDictionary()


class Host:
    """Owns the simulators. Called by compiled code, from any thread; never calls JAX.

    Attributes:
      failure: the first error of a simulator; after it every call fails.
    """

    def __init__(self, plan: Plan):
        self.plan, self.number = plan, next(_numbers)
        self.failure: SimulatorError | None = None
        self._live: _Live | None = None
        self._lock = threading.Lock()
        hosts[self.number] = self

    def reset(self, keys: np.ndarray, handle: np.ndarray, obs: np.ndarray) -> None:
        """Starts one simulator for each of `keys` uint32 [env, 2]; those of before are ended."""
        self._require_working()
        with self._lock:
            old, self._live = self._live, None
        if old is not None:
            old.stepper.close()
        try:
            live = _Live(self.plan, self.number, len(keys))
            with self._lock:
                self._live = live
            live.rows.seed[:] = keys[:, 1] & 0x7FFFFFFF  # some simulators take no larger ones
            live.stepper.reset()
        except Exception as error:
            raise self._fail(error, "starting") from error
        handle[:] = live.handles
        obs[:] = live.rows.obs

    def step(self, handle: np.ndarray, action: np.ndarray, elapsed: np.ndarray, *results: np.ndarray) -> None:
        """One step of the environments that `handle` names; `results` as in `environment.GymnasiumEnvironment`."""
        self._require_working()
        live = self._live
        share = None if live is None else live.share(int(handle[0, 2]), len(handle))
        if live is None or share is None or share.handles.tobytes() != handle.tobytes():
            raise SimulatorError(
                f"{self.plan.source.name}: this state is not the last one of its simulators, which cannot go back: "
                "they were reset, closed, or stepped since; copy() of the environment gives simulators of their own"
            )
        try:
            live.step(share, action, elapsed, results)
        except Exception as error:
            raise self._fail(error, "stepping") from error

    def close(self) -> None:
        """Ends the simulators; a reset starts others."""
        with self._lock:
            live, self._live = self._live, None
        if live is not None:
            live.stepper.close()

    def abandon(self) -> None:
        """Ends the simulators; from now on every call fails."""
        with self._lock:
            self.failure = self.failure or SimulatorError(f"{self.plan.source.name} was closed")
        self.close()

    def _require_working(self) -> None:
        if self.failure is not None:
            raise SimulatorError(str(self.failure))

    def _fail(self, error: Exception, action: str) -> SimulatorError:
        if not isinstance(error, SimulatorError):
            error = raised(self.plan.source.name, action, error)
        with self._lock:
            self.failure = self.failure or error
            live = self._live
        if live is not None and isinstance(live.stepper, Workers):
            live.stepper.kill()
        return self.failure


class _Share(NamedTuple):
    """What compiled code steps at once: an actor's environments."""

    start: int
    stop: int
    rows: Rows  # of these environments only, as the following
    handles: np.ndarray
    results: tuple[np.ndarray, ...]  # in the order of `EnvState`


class _Live:
    """Simulators that are running, and their rows."""

    def __init__(self, plan: Plan, host: int, num_envs: int):
        tasks, in_processes = plan.tasks(num_envs)
        self.stepper: Stepper
        if in_processes:
            self.stepper = Workers(tasks, plan.sizes(num_envs), plan.timeout)
            self.rows = self.stepper.rows
        else:
            self.rows = plan.sizes(num_envs).on(bytearray(plan.sizes(num_envs).nbytes()))
            self.stepper = make_stepper(tasks[0], self.rows)
        self.handles = np.zeros((num_envs, HANDLE_SIZE), np.uint32)
        self.handles[:, 0], self.handles[:, 1] = host, next(_sets)
        self.handles[:, 2] = np.arange(num_envs)
        self._shares: dict[tuple[int, int], _Share] = {}
        self._last = plan.episode_length - 1

    def share(self, start: int, num: int) -> _Share:
        """The rows of `num` environments from `start` on."""
        found = self._shares.get((start, num))
        if found is None:
            mine = slice(start, start + num)
            rows, handles = Rows(*(array[mine] for array in self.rows)), self.handles[mine]
            results = (handles, rows.obs, rows.final_obs, rows.reward, rows.terminated, rows.truncated, rows.invalid)
            found = self._shares[start, num] = _Share(start, start + num, rows, handles, (*results, rows.elapsed))
        return found

    def step(self, share: _Share, action: np.ndarray, elapsed: np.ndarray, results: tuple[np.ndarray, ...]) -> None:
        share.handles[:, 3] += 1
        rows = share.rows
        rows.action[:] = action
        # The learner may ask for an earlier end by what it says has elapsed.
        np.greater_equal(np.maximum(elapsed, rows.elapsed), self._last, out=rows.end)
        self.stepper.step(share.start, share.stop)
        for result, row in zip(results, share.results, strict=True):
            result[:] = row
