"""Several trainings as one program, in environments that are JAX programs."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

import jax
import numpy as np

from jaxtrpo.actors import Actors, Trainings
from jaxtrpo.envs.base import Environment
from jaxtrpo.evaluate import Evaluator
from jaxtrpo.loop import Result, Run
from jaxtrpo.plan import plan, restored
from jaxtrpo.runs.checkpoint import Checkpoint
from jaxtrpo.runs.directory import hold
from jaxtrpo.runs.followers import Follower
from jaxtrpo.runs.metrics import Metrics, Row
from jaxtrpo.runs.output import Output
from jaxtrpo.runs.progress import NOTHING_DONE, Progress
from jaxtrpo.runs.termination import Terminated, Termination, termination_as_interrupt
from jaxtrpo.types import TrainState
from jaxtrpo.updates import Moment, rows_of, synchronous_updates

Planned = tuple[Run, Checkpoint | None]


def run_as_one(
    env: Environment, cases: Sequence[Mapping[str, Any]], devices: Sequence[Any], *, progress: bool
) -> list[Result]:
    """Trains all cases to their ends, or until they are interrupted.

    Args:
      env: a JAX program.
      cases: arguments of `train` of each.
      devices: that the trainings are dealt out to; one may have one more than another.
      progress: show the mean of all.
    """
    number = min(len(devices), len(cases))
    trainings = Trainings(tuple(devices[:number]), -(-len(cases) // number) * number)
    alone = Actors(tuple(devices[:1]))
    planned = [plan(env, case, actors=alone, trainings=trainings) for case in cases]
    return _run(planned, trainings, progress=progress)


def require_one_program(runs: Sequence[Run]) -> None:
    """Raises ValueError where trainings need buffers of different sizes."""
    if len({run.update.sizes for run in runs}) > 1:
        raise ValueError(
            "steps_per_update: one program has room for as many steps in the batches of all; set max_steps_per_update, "
            "num_envs and segment_length"
        )


def _run(planned: Sequence[Planned], trainings: Trainings, *, progress: bool) -> list[Result]:
    run, _ = planned[0]
    interruption: KeyboardInterrupt | None = None
    with ExitStack() as stack:
        for each, _ in planned:
            if each.directory is not None:
                stack.enter_context(hold(each.directory))
        stack.enter_context(termination_as_interrupt())
        state = _first_state(planned, trainings)
        evaluator, begun = run.evaluator(), functools.cache(lambda: jax.device_get(state))
        parts = [
            _Training(*each, evaluator, functools.partial(_part, begun, number)) for number, each in enumerate(planned)
        ]
        for each in parts:
            each.follow(stack)
        bar = stack.enter_context(Progress(run.config.total_steps, _mean(parts), enabled=progress))
        moments = stack.enter_context(closing(synchronous_updates(run.update, state, np.asarray)))
        try:
            while not all(each.over for each in parts):
                moment = next(moments)
                now, whole = time.perf_counter() - run.started, functools.cache(_on_host(moment))
                for number, each in enumerate(parts):
                    if not each.over:
                        each.add(moment, moment.measured[number], functools.partial(_part, whole, number), now)
                bar.update(_mean(parts))
        except KeyboardInterrupt as error:
            interruption = error
            bar.note("interrupted; keeping what was learned so far")
        except Exception:
            for each in parts:
                each.output.save()
            raise
        for each in parts:
            each.output.save()
    if isinstance(interruption, Termination):
        raise Terminated
    return [each.result() for each in parts]


class _Training:
    """One of them: its files, and what it has come to."""

    def __init__(
        self, run: Run, saved: Checkpoint | None, evaluator: Evaluator | None, state: Callable[[], TrainState]
    ):
        self.run, self._evaluate = run, run.evaluation(evaluator)
        metrics = {} if saved is None else saved.metrics
        # One name: an interrupt finds a state and the number of updates that led to it.
        self._reached = state, int(metrics["update"][-1]) if metrics else 0

        def write(place: Any, metrics: Metrics) -> None:
            run.write(place, metrics, *self._reached)

        self.output = Output(run.directory, run.saving, metrics, write)
        self.last: Row = self.output.last or NOTHING_DONE
        self._followers: list[Follower] = []
        self._seconds_before, self._before = float(self.last["wall_seconds"] or 0), 0.0
        self.over = int(self.last["env_steps"] or 0) >= run.config.total_steps

    def follow(self, stack: ExitStack) -> None:
        """Begins to tell others its metrics, until the stack is closed."""
        self._followers = [stack.enter_context(closing(begin(self.output.last))) for begin in self.run.follow]

    def add(self, moment: Moment, measured: np.ndarray, state: Callable[[], TrainState], now: float) -> None:
        """Takes in its part of a moment."""
        steps_before = int(self.last["env_steps"] or 0)
        so_far = self._seconds_before
        rows = rows_of(moment, measured, self.last, so_far + self._before, so_far + now)
        self._before = now
        if not rows:
            self.over = True
            return
        rows[-1]["eval_return"] = self._evaluate(state, steps_before, int(rows[-1]["env_steps"]))
        self.output.add(rows)
        self.last = rows[-1]
        self.over = int(self.last["env_steps"] or 0) >= self.run.config.total_steps
        if self.over:  # later moments go on, but this one does not
            ended = state()
            state = lambda: ended  # noqa: E731
        self._reached = state, int(self.last["update"] or 0)
        for follower in self._followers:
            follower.add(rows)
        self.output.keep(len(rows))
        if self.run.on_update is not None:
            for row in rows:
                self.run.on_update(row, state())

    def result(self) -> Result:
        """What it leaves."""
        state = self._reached[0]()
        return Result(self.run.policy_of(state), self.output.metrics.columns(), state, self.run.config)


def _first_state(planned: Sequence[Planned], trainings: Trainings) -> TrainState:
    """Of all; where some go on, theirs are put in the place of new ones."""
    run, _ = planned[0]
    padded = [*planned, *[planned[-1]] * (trainings.number - len(planned))]
    keys = np.stack([jax.random.PRNGKey(each.config.seed) for each, _ in padded])
    settings = jax.tree.map(lambda *leaves: np.stack(leaves), *[each.update.hyperparameters() for each, _ in padded])
    state = trainings.map(run.update.first_state)(keys, settings)
    if all(saved is None for _, saved in planned):
        return state
    host = jax.tree.map(np.array, jax.device_get(state))
    for number, (each, saved) in enumerate(planned):
        if saved is not None:
            one, _ = restored(each, saved)
            jax.tree.map(lambda all_, leaf, number=number: all_.__setitem__(number, leaf), host, one)
    return trainings.map(lambda tree: tree)(host)


def _on_host(moment: Moment) -> Callable[[], TrainState]:
    return lambda: jax.device_get(moment.state())


def _part(whole: Callable[[], TrainState], number: int) -> TrainState:
    """One training's state, with an axis of one actor."""
    return jax.tree.map(lambda leaf: leaf[number : number + 1], whole())


def _mean(parts: Sequence[_Training]) -> Row:
    """A row that stands for all."""
    rows = [each.last for each in parts]
    names = [name for name in rows[0] if all(name in row for row in rows)]
    means = {name: float(np.mean([_number(row[name]) for row in rows])) for name in names}
    return {**means, "update": round(means["update"]), "env_steps": round(means["env_steps"])}


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
