"""Early stopping: decides from the metrics of a run whether it has reached what it was asked for, and foresees when."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

import numpy as np

from jaxtrpo.config import Config
from jaxtrpo.runs.metrics import Row
from jaxtrpo.training.selection import EPISODES

BY_CALLER = "stopped: on_update returned False"


class Stopping:
    """The criteria `stop_at_return`, `stop_after_evaluations` and `stop_after_seconds`."""

    def __init__(self, config: Config, metrics: Mapping[str, np.ndarray]):
        """Starts with the metrics of a run that is resumed; empty for a new run."""
        self._config = config
        self._episodes = self._waited = 0  # finished episodes; evaluations since the best one
        self.best = self._evaluation = self._return = -math.inf
        self._seconds, self._steps = 0.0, 0
        values = zip(*(column.tolist() for column in metrics.values()), strict=True)
        rows = [dict(zip(metrics, row, strict=True)) for row in values]
        # The updates of one program have equal shares of its seconds.
        for _, together in itertools.groupby(rows, lambda row: row.get("learn_seconds", object())):
            self.add(together)

    def add(self, rows: Iterable[Row]) -> None:
        """Takes the metrics of the updates of one program, of which the last has the evaluation, if one was due."""
        every, before, evaluation = self._config.eval_every, self._steps, -math.inf
        for row in rows:
            self._episodes += int(row["episodes"] or 0)
            self._return = _number(row["return_100"])
            self._seconds = float(row["wall_seconds"] or 0)
            self._steps = int(row.get("env_steps") or 0)
            evaluation = max(evaluation, _number(row["eval_return"]))
        if evaluation > -math.inf or (every and self._steps // every > before // every):
            self._evaluated(evaluation)

    def _evaluated(self, evaluation: float) -> None:
        """Counts an evaluation; that of a policy that breaks the simulation is minus infinity."""
        self._evaluation = evaluation
        self._waited = 0 if evaluation > self.best else self._waited + 1
        self.best = max(self.best, evaluation)

    def begin_anew(self) -> None:
        """Forgets the returns so far of training, because the environment has changed."""
        self._episodes, self._return = 0, -math.inf

    def reason(self, seconds: float = 0.0) -> str | None:
        """Returns why the run is to stop after the last of these updates; None if it is not.

        Args:
          seconds: since the run was begun, also those after the last update, such as of an evaluation.
        """
        goal, patience = self._config.stop_at_return, self._config.stop_after_evaluations
        if goal is not None and self._config.eval_every and self._evaluation >= goal:
            return f"stopped: eval_return {self._evaluation:.1f} has reached stop_at_return={goal:g}"
        if goal is not None and not self._config.eval_every and self._episodes >= EPISODES and self._return >= goal:
            return f"stopped: return_100 {self._return:.1f} has reached stop_at_return={goal:g}"
        if patience is not None and self._waited >= patience:
            if self.best == -math.inf:
                return f"stopped: none of the last {self._waited} evaluations had a return"
            if self._waited == 1:
                return f"stopped: the last evaluation was not better than {self.best:.1f}"
            return f"stopped: none of the last {self._waited} evaluations was better than {self.best:.1f}"
        limit = self._config.stop_after_seconds
        if limit is not None and max(self._seconds, seconds) >= limit:
            return f"stopped: stop_after_seconds={limit:g} have passed"
        return None


class Forecast:
    """How many environment steps a run makes until it stops after `stop_after_seconds`, by its speed so far."""

    def __init__(self, config: Config, env_steps: int = 0, seconds: float = 0.0):
        """Expects the largest number of steps at first, or the speed so far of a run that is resumed."""
        self.total_steps = config.most_steps
        self._most, self._limit = config.most_steps, config.stop_after_seconds
        self._expect(env_steps, seconds, env_steps, seconds)
        self._first: tuple[int, float] | None = None  # steps and seconds when the first update, which compiles, ended

    def add(self, env_steps: int, seconds: float) -> None:
        """Takes the steps and seconds of a run after an update; each since the run was begun."""
        self._first = self._first or (env_steps, seconds)
        self._expect(env_steps, seconds, env_steps - self._first[0], seconds - self._first[1])

    def _expect(self, env_steps: int, seconds: float, steps: int, passed: float) -> None:
        """Foresees the end after so many steps and seconds, by the steps of the seconds that have passed."""
        if self._limit is not None and steps > 0 and passed > 0:
            left = steps / passed * (self._limit - seconds)
            # One step more, because a run whose end is reached makes no update.
            self.total_steps = min(self._most, env_steps + max(1, round(left)))


def _number(value: float | None) -> float:
    """Returns minus infinity for a blank."""
    return -math.inf if value is None or math.isnan(value) else float(value)
