"""`train_many`: trains with several seeds and settings."""

from __future__ import annotations

import functools
import itertools
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from jaxtrpo.config import Config
from jaxtrpo.config.checks import expanded, plain, require_path, require_whole
from jaxtrpo.config.environment import names_string, options_of
from jaxtrpo.envs.abilities import close, copy_of, has
from jaxtrpo.envs.base import Environment
from jaxtrpo.envs.registry import environment_for, is_program, may_solve_equations
from jaxtrpo.envs.traced_once import TracedOnce
from jaxtrpo.parallel.actors import Actors, Trainings
from jaxtrpo.parallel.devices import choose_actors
from jaxtrpo.parallel.processes import require_alone
from jaxtrpo.runs.checkpoint import require_same_run
from jaxtrpo.runs.metrics import Row
from jaxtrpo.runs.progress import Progress
from jaxtrpo.runs.termination import Interrupted, Terminated, Termination, termination_as_interrupt
from jaxtrpo.training.batched import Program, require_same_sizes, run_programs
from jaxtrpo.training.cases import Case, cases_of
from jaxtrpo.training.prepare import begin, plan
from jaxtrpo.training.record import Result, without_buffer
from jaxtrpo.training.run import Watch


def train_many(
    env: str | Environment | Callable[[], Any],
    *,
    seeds: Iterable[int] = (0,),
    out: str | Path | None = None,
    progress: bool = True,
    **arguments: Any,
) -> list[Result]:
    """Trains with every seed and every combination of settings that are given as lists.

    Each run gives the result of `train` with one actor and the same settings. In environments that are JAX programs
    (such as Brax), results are equal up to rounding: all runs that differ only in seeds and traced settings are
    compiled as one program, which is mapped over them. Each value of any other setting, such as `gae_lambda`, is
    compiled into a program of its own, and these programs run one after another. In all other environments, runs are
    trained in parallel, one per core, with bit-identical results. Algorithms with asynchronous actors (`a3c`,
    `naf(asynchronous=True)`) always train in parallel.

    Args:
      env: see `train`.
      seeds: random seeds, as for `train`.
      out: parent of the directories of all runs: `seed-0`, or `max_kl=0.01/seed-0` if `max_kl` is a list.
      progress: show the mean over all runs; if they are trained in parallel, also the final return of each.
      **arguments: other arguments of `train`. Numbers of the algorithm (`max_kl`, `gae_lambda`, ...), `discount`,
        `steps_per_update`, `max_steps_per_update`, `num_envs` and `segment_length` may be lists. `actors` is the number
        of devices for all runs together. `on_update` is called for all runs, those in parallel from several threads,
        and its rows do not say of which run they are.

    Returns:
      One result per run; seeds vary fastest. Their states are without the contents of replay buffers (`replay` of the
      learner's state is None).

    Raises:
      ValueError: there are no seeds, an argument that must not be a list is one, or `train` would refuse a run.
      Interrupted: a KeyboardInterrupt, as from `train`; its attribute `result` is the list of the results so far,
        without runs that had not started. All other exceptions are those of `train`.
    """
    return prepare_many(env, seeds=seeds, out=out, **arguments)(progress)


def prepare_many(
    env: str | Environment | Callable[[], Any],
    *,
    seeds: Iterable[int],
    out: str | Path | None = None,
    **arguments: Any,
) -> Callable[[bool], list[Result]]:
    """Checks all arguments, as `train_many`, and returns a function that trains, given `progress`."""
    require_alone("train_many (--seeds)")
    if plain(arguments.get("processes")) not in (None, 1):
        raise ValueError(f"processes={arguments['processes']}: train_many (--seeds) supports only a single process")
    if out is not None:
        require_path(out=out)
    if isinstance(arguments.get("log_info"), list | tuple):  # other lists are values to train with
        arguments["log_info"] = names_string(arguments["log_info"])
    config = Config(**{name: arguments[name] for name in ("device", "env_options") if name in arguments})
    options, number = options_of(config.env_options), plain(arguments.pop("actors", None))
    if number is not None:
        require_whole(1, actors=number)
    devices = choose_actors(
        number,
        device=config.device,
        program=is_program(env, options),
        lapack=may_solve_equations(env, options),
    ).devices
    cases = [case._replace(arguments=_placed(case, out)) for case in cases_of(seeds, arguments)]
    environment, close = environment_for(env, 1, arguments.get("max_episode_steps"), options)
    try:
        if is_program(environment):
            groups = _of_one_program(environment, cases, devices[:1])
            if groups is not None:
                programs = [_planned(environment, [cases[number] for number in group], devices) for group in groups]
                return lambda progress: _run_in_order(groups, programs, progress=progress)
        _planned(environment, cases, devices)
    finally:
        close()
    return lambda progress: _side_by_side(env, cases, devices, progress=progress)


def _planned(environment: Environment, cases: Sequence[Case], devices: Sequence[Any]) -> Program:
    """Builds one program of trainings that share these devices."""
    number = min(len(devices), len(cases))
    trainings = Trainings(tuple(devices[:number]), -(-len(cases) // number) * number)  # rounded up, to fill all devices
    alone = Actors(tuple(devices[:1]))
    common = {"actors": alone, "trainings": trainings, "has_options": True}
    plans = [plan(environment, case.arguments, **common) for case in cases]
    for each in plans:
        if each.saved is not None:
            require_same_run(each.saved, each.env.name, each.config)
    if plans[0].update.in_one_program:
        require_same_sizes(plans)
    return Program([case.name for case in cases], plans, trainings)


def _of_one_program(environment: Environment, cases: Sequence[Case], device: Sequence[Any]) -> list[list[int]] | None:
    """Returns the indices of the cases, grouped by program; None if actors are asynchronous, which rules out programs.

    Which settings are compiled in is not known, since an algorithm may close over anything, so lowered programs are
    compared.
    """
    once, programs, groups = TracedOnce(environment), dict[Any, Any](), dict[Any, list[int]]()
    several = len({tuple(case.chosen.items()) for case in cases}) > 1
    for number, case in enumerate(cases):
        chosen = tuple(case.chosen.items())
        if chosen not in programs:
            run = plan(once, case.arguments, actors=Actors(tuple(device)), has_options=True)
            if not run.update.learner.waits:
                return None
            programs[chosen] = (run.update.program(), run.update.algorithm.updates_at_once) if several else ()
        groups.setdefault(programs[chosen], []).append(number)
    return list(groups.values())


def _run_in_order(groups: Sequence[Sequence[int]], programs: Sequence[Program], *, progress: bool) -> list[Result]:
    """Runs programs, and returns the results in the order of the cases."""

    def in_order(results: Sequence[Result]) -> list[Result]:
        by_number = dict(zip(itertools.chain(*groups), results, strict=False))  # fewer results if interrupted
        return [by_number[number] for number in sorted(by_number)]

    try:
        return in_order(run_programs(programs, progress=progress))
    except Interrupted as error:
        raise Interrupted(in_order(error.result)) from None


def _placed(case: Case, out: str | Path | None) -> dict[str, Any]:
    return {**case.arguments, "actors": 1, "out": None if out is None else expanded(out) / case.name}


def _side_by_side(env: Any, cases: Sequence[Case], devices: Sequence[Any], *, progress: bool) -> list[Result]:
    """Trains one case per device at a time, each in its own thread."""
    free: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for device in devices:
        free.put(device)
    stopping = threading.Event()

    def one(name: str, arguments: Mapping[str, Any], shown: _Shown) -> Result | None:
        if stopping.is_set():
            return None
        device = free.get()
        try:
            # Simulators outside of JAX serve one training only. A function or class is called for each.
            is_object = not isinstance(env, type) and has(env, Environment)
            own_env = copy_of(env) if is_object else env

            def update(rows: Sequence[Row]) -> None:
                for row in rows:
                    shown.update(name, row)
                if stopping.is_set():
                    raise KeyboardInterrupt

            try:
                run = begin(plan(own_env, arguments, actors=Actors((device,))))
                try:
                    result = run.run(progress=False, watch=Watch(update, functools.partial(shown.note, name)))
                except Interrupted as error:
                    if not stopping.is_set():  # a callback of the user's has raised it, which ends all
                        raise
                    return without_buffer(error.result, run.update)
                result = without_buffer(result, run.update)
            finally:
                if own_env is not env:
                    close(own_env)
        finally:
            free.put(device)
        shown.finish(name, result)
        return result

    interrupted = False
    given = cases[0].arguments.get
    common = Config(total_steps=given("total_steps"), stop_after_seconds=given("stop_after_seconds"))
    with (
        Progress(common.most_steps * len(cases), enabled=progress) as bar,
        termination_as_interrupt(),
        ThreadPoolExecutor(len(devices)) as pool,
    ):
        shown = _Shown(bar, common, len(cases))
        waiting = [pool.submit(one, case.name, case.arguments, shown) for case in cases]
        try:
            for each in as_completed(waiting):  # in this order, the first error ends all
                each.result()
        except BaseException as error:
            stopping.set()  # the others end with a checkpoint
            if isinstance(error, Termination):
                raise Terminated from None
            if not isinstance(error, KeyboardInterrupt):
                raise
            interrupted = True
    found = [each for each in map(_result_of, waiting) if each is not None]
    if interrupted:
        raise Interrupted(found)
    return found


class _Shown:
    """Progress of trainings side by side: their steps together, and the means of what they have reached."""

    def __init__(self, bar: Progress, common: Config, number: int):
        """Starts with the settings that are common to a number of trainings."""
        bar.status("compiling")
        self._bar, self._lock = bar, threading.Lock()
        self._total, self._seconds, self._number = common.most_steps, common.stop_after_seconds, number
        self._rows = dict[str, Row]()  # the last of each training
        self._notes = set[str]()  # that were shown
        self._began = time.perf_counter()

    def update(self, name: str, row: Row) -> None:
        """Shows an update of one training, and its evaluation, if there is one."""
        with self._lock:
            self._rows[name] = row
            rows = self._rows.values()
            if self._seconds is not None:
                self._bar.expect(self._expected(self._seconds))
            self._bar.update(
                {
                    "env_steps": sum(min(int(each["env_steps"] or 0), self._total) for each in rows),
                    "wall_seconds": time.perf_counter() - self._began,
                    **{column: _mean([each[column] for each in rows]) for column in ("mean_return", "return_100")},
                }
            )
            value = row["eval_return"]
            if value is not None and not np.isnan(value):
                self._bar.note(f"{name}: evaluation after {row['env_steps']:,} steps: return {value:,.4g}")

    def note(self, name: str, text: str) -> None:
        """Shows a note or warning of one training, unless another one has had the same."""
        with self._lock:
            if text not in self._notes:
                self._notes.add(text)
                self._bar.note(f"{name}: {text}")

    def _expected(self, seconds: float) -> int:
        """Returns how many steps all trainings will make together, by the speed of those that have begun."""
        done = [(float(row["env_steps"] or 0), float(row["wall_seconds"] or 0)) for row in self._rows.values()]
        ends = [steps * max(seconds / passed, 1) for steps, passed in done if passed]
        return round(self._number * min(_mean(ends), self._total)) if ends else self._number * self._total

    def finish(self, name: str, result: Result) -> None:
        """Prints the final return of a training; one that was complete already has shown no update."""
        if len(result.metrics["env_steps"]) and name not in self._rows:
            self.update(name, {name: column[-1].item() for name, column in result.metrics.items()})
        last = _mean(result.metrics["return_100"][-1:])
        self._bar.note(f"{name}: return_100 {last:.1f}", sys.stdout)


def _mean(values: Iterable[float | None]) -> float:
    """Returns the mean of the numbers that are known; NaN if none is."""
    known = [value for value in values if value is not None and not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def _result_of(training: Future[Result | None]) -> Result | None:
    try:
        return training.result()
    except Interrupted as error:
        return error.result
