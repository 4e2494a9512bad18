"""Trainings in JAX environments, several of which are compiled as one program."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from typing import NamedTuple

import jax
import numpy as np

from jaxtrpo.config.environment import names_of
from jaxtrpo.parallel.actors import Trainings, join_envs
from jaxtrpo.rollout.evaluation import Evaluator
from jaxtrpo.rollout.types import TrainState
from jaxtrpo.runs.checkpoint import as_leaf, as_numpy
from jaxtrpo.runs.directory import OutputError, hold
from jaxtrpo.runs.metrics import Row
from jaxtrpo.runs.progress import Progress
from jaxtrpo.runs.symptoms import notes
from jaxtrpo.runs.termination import DeferredSignals, Handling, Interrupted, Terminated, Termination
from jaxtrpo.training.drivers.synchronous import synchronous_updates
from jaxtrpo.training.metrics import Moment, rows_of
from jaxtrpo.training.prepare import restored
from jaxtrpo.training.record import Record, Result, without_buffer
from jaxtrpo.training.requirements import require_finite_start
from jaxtrpo.training.run import Plan


class Program(NamedTuple):
    """Trainings that are compiled as one program."""

    names: Sequence[str]
    plans: Sequence[Plan]  # one per training, made for `trainings`
    trainings: Trainings  # as many as there are plans, or a few more to fill all devices


def require_same_sizes(plans: Sequence[Plan]) -> None:
    """Raises ValueError if trainings to be resumed together were started with different batch sizes."""
    if len({plan.update.sizes for plan in plans}) > 1:
        raise ValueError(
            "resume=True (--resume): the runs have batches of different sizes (num_envs, steps_per_update); resume "
            "those of equal sizes together, one call for each size"
        )


def run_programs(programs: Sequence[Program], *, progress: bool) -> list[Result]:
    """Runs one program after the other, until all trainings have ended or are interrupted.

    Returns:
      Results in the order of the programs.

    Raises:
      Interrupted: SIGINT was received; everything is saved, and its result is that of the trainings that were started.
      Terminated: SIGTERM was received; everything is saved.
    """
    results: list[Result] = []
    interrupt: KeyboardInterrupt | None = None
    with ExitStack() as stack:
        for program in programs:
            for each in program.plans:
                if each.directory is not None:
                    stack.enter_context(hold(each.directory, new=each.directory_is_new))
        for number, program in enumerate(programs):
            label = f"program {number + 1} of {len(programs)}: {_label_of(program.names)}"
            ready = _restarted(program) if number else program
            try:
                with DeferredSignals() as signals:
                    shown = label if len(programs) > 1 else None
                    found, interrupt = _run_program(ready, shown, signals, progress=progress)
            except KeyboardInterrupt as error:  # before its first update
                if not results and not isinstance(error, Termination):
                    raise
                found, interrupt = [], error
            results += found
            if interrupt is not None:
                break
    if isinstance(interrupt, Termination):
        raise Terminated
    if interrupt is not None:
        raise Interrupted(results) from None
    return results


def _label_of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _restarted(program: Program) -> Program:
    """Restarts the clocks of trainings that have waited for other programs."""
    now = time.perf_counter()
    return program._replace(plans=[dataclasses.replace(plan, started=now) for plan in program.plans])


def _run_program(
    program: Program, label: str | None, signals: Handling, *, progress: bool
) -> tuple[list[Result], KeyboardInterrupt | None]:
    """Runs the trainings of one program.

    Args:
      program: trainings, whose directories are already locked.
      label: shown beside the progress bar.
      signals: handling of signals, which wait for the end of an update and until everything is saved.
      progress: whether to show the mean over the trainings.

    Returns:
      The results, and what interrupted the trainings, if anything.
    """
    _, plans, trainings = program
    first = plans[0]
    interrupt: KeyboardInterrupt | None = None
    with ExitStack() as stack:
        state = _first_state(plans, trainings)
        evaluator, begun = first.evaluator(), functools.cache(lambda: jax.device_get(state))
        parts = [
            _Training(each, evaluator, functools.partial(_part, begun, number), lambda text: bar.status(text))
            for number, each in enumerate(plans)
        ]
        for each in parts:
            each.record.start_loggers(stack)
        bar = stack.enter_context(Progress(first.config.most_steps, _mean(parts), enabled=progress))
        begin = first.warm_start and first.warm_start.note
        for note in (*first.notes, *(each for each in (begin, label) if each)):
            bar.note(note)
        checks, logged = first.symptoms(), names_of(first.config.log_info)
        if not all(each.over for each in parts):
            bar.status("compiling")
        moments = stack.enter_context(closing(synchronous_updates(first.update, state, jax.device_get)))
        try:
            while not all(each.over for each in parts):
                moment = next(moments)
                signals.defer()
                now = time.perf_counter()
                whole = functools.cache(_on_host(moment.state))
                shown = whole if moment.shown is moment.state else functools.cache(_on_host(moment.shown))
                for number, each in enumerate(parts):
                    if not each.over:
                        own = functools.cache(functools.partial(_part, whole, number))
                        seen = own if shown is whole else functools.cache(functools.partial(_part, shown, number))
                        each.add(moment, moment.measured.values[number], own, seen, now)
                        if each.record.stopped:
                            bar.note(f"{program.names[number]} {each.record.stopped}")
                mean = _mean(parts)
                bar.update(mean)
                for note in notes(checks, [_noticed(parts, mean, logged)]):
                    bar.note(note)
                signals.end_of_update()
        except KeyboardInterrupt as error:
            interrupt = error
            bar.note("interrupted; keeping what was learned so far")
        except Exception:
            with suppress(OutputError):  # the first error is the one to know of
                _save(parts)
            raise
        signals.ignore()
        _save(parts)
        try:
            signals.end_of_update()  # one may have come since
        except KeyboardInterrupt as error:
            interrupt = error
    return [without_buffer(each.record.result(), first.update) for each in parts], interrupt


class _Training:
    """One training of a program: its records, and whether it has ended."""

    def __init__(
        self,
        plan: Plan,
        evaluator: Evaluator | None,
        state: Callable[[], TrainState],
        say: Callable[[str], object],
    ):
        metrics = {} if plan.saved is None else plan.saved.metrics
        self.record, self._evaluate = Record(plan, metrics, state), plan.evaluation(evaluator, say)
        self._total_steps = plan.config.most_steps
        self._before = float(self.record.last["wall_seconds"] or 0)
        self._started = plan.started - self._before  # seconds, perf_counter; earlier if the run was resumed
        self.over = self._steps() >= self._total_steps or self.record.stopped is not None

    def add(
        self,
        moment: Moment,
        measured: np.ndarray,
        state: Callable[[], TrainState],
        shown: Callable[[], TrainState],
        now: float,
    ) -> None:
        """Records this training's part of a moment.

        Args:
          moment: what the driver did for all trainings.
          measured: its metrics of this training.
          state: cached, returns the state of this training.
          shown: cached, returns the state without the replay buffer, see `Moment`.
          now: when it ended, seconds, perf_counter.
        """
        seconds, steps_before = now - self._started, self._steps()
        rows = rows_of(moment, measured, self.record.last, self._before, seconds)
        self._before = seconds
        if not rows:
            self.over = True
            return
        env_steps = int(rows[-1]["env_steps"])
        rows[-1]["eval_return"] = self._evaluate(shown, steps_before, env_steps, self._total_steps)
        self.record.add(rows, state, shown)
        self.over = env_steps >= self._total_steps or self.record.stopped is not None
        if self.over:
            state()  # later moments continue the other trainings

    def _steps(self) -> int:
        return int(self.record.last["env_steps"] or 0)


def _save(parts: Sequence[_Training]) -> None:
    """Saves all trainings; raises the first OutputError after the others were saved."""
    errors = []
    for each in parts:
        try:
            each.record.save()
        except OutputError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _first_state(plans: Sequence[Plan], trainings: Trainings) -> TrainState:
    """Returns the states of all trainings; those that are resumed or start from another run are read."""
    padded = [*plans, *[plans[-1]] * (trainings.number - len(plans))]
    keys = np.stack([jax.random.PRNGKey(each.config.seed) for each in padded])
    settings = jax.tree.map(lambda *leaves: np.stack(leaves), *[each.update.hyperparameters() for each in padded])
    state = trainings.map(plans[0].update.first_state)(keys, settings)
    require_finite_start(plans[0].env, join_envs(state.actors.env.obs))
    if all(plan.saved is None and plan.warm_start is None for plan in plans):
        return state
    host = jax.tree.map(lambda leaf: np.array(as_numpy(leaf)), jax.device_get(state))
    for number, each in enumerate(plans):
        if each.saved is not None:
            one, _ = restored(each, each.saved)
            jax.tree.map(lambda all_, leaf, number=number: all_.__setitem__(number, as_numpy(leaf)), host, one)
        elif each.warm_start is not None:
            for path, leaf in jax.tree.leaves_with_path(host):
                if (name := jax.tree_util.keystr(path)) in each.warm_start.arrays:
                    leaf[number] = each.warm_start.arrays[name]
    return trainings.map(lambda tree: tree)(jax.tree.map(as_leaf, host, state))


def _on_host(state: Callable[[], TrainState]) -> Callable[[], TrainState]:
    return lambda: jax.device_get(state())


def _part(whole: Callable[[], TrainState], number: int) -> TrainState:
    """Returns one training's state, with an axis of one actor."""
    return jax.tree.map(lambda leaf: leaf[number : number + 1], whole())


def _mean(parts: Sequence[_Training]) -> Row:
    """Returns a row of the means over all trainings."""
    rows = [each.record.last for each in parts]
    names = [name for name in rows[0] if all(name in row for row in rows)]
    means = {name: float(np.mean([_number(row[name]) for row in rows])) for name in names}
    return {**means, "update": round(means["update"]), "env_steps": round(means["env_steps"])}


def _noticed(parts: Sequence[_Training], mean: Row, logged: Sequence[str]) -> Row:
    """Returns the means, but an entry of `info` as soon as one of the trainings has it."""
    rows = [each.record.last for each in parts]
    known = {name: max((_number(row.get(name)) for row in rows), key=math.isfinite) for name in logged}
    return {**mean, **known}


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
