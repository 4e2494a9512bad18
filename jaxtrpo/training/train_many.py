"""`train_many`: seeds and settings side by side."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from jaxtrpo.config import Config
from jaxtrpo.envs.abilities import copy_of
from jaxtrpo.envs.base import Environment
from jaxtrpo.envs.registry import environment_for, is_program
from jaxtrpo.envs.traced_once import TracedOnce
from jaxtrpo.parallel.actors import Actors, Trainings
from jaxtrpo.parallel.devices import choose_actors
from jaxtrpo.parallel.processes import require_alone
from jaxtrpo.rollout.types import TrainState
from jaxtrpo.runs.checkpoint import require_same_run
from jaxtrpo.runs.metrics import Row
from jaxtrpo.runs.termination import Terminated, Termination, termination_as_interrupt
from jaxtrpo.training.batched import Program, require_same_sizes, run_programs
from jaxtrpo.training.cases import Case, cases_of
from jaxtrpo.training.prepare import begin, plan
from jaxtrpo.training.record import Result


def train_many(
    env: str | Environment | Callable[[], Any],
    *,
    seeds: Iterable[int] = (0,),
    out: str | Path | None = None,
    progress: bool = True,
    **arguments: Any,
) -> list[Result]:
    """Trains with every seed and every combination of settings that are given as lists.

    Each training is what `train` makes of its settings with one actor. In environments that are JAX programs (Brax) it
    is so to rounding: trainings that differ in seeds and other data alone become one program, mapped over them; where
    something that is compiled in differs, such as `gae_lambda`, there are several programs, one after the other. In all
    other environments trainings run side by side, one a core, and are the same to the bit. So do those of algorithms
    whose actors do not wait (`a3c`, asynchronous `naf`).

    Args:
      env: as for `train`.
      seeds: whole numbers.
      out: directory below which each has its own, such as `seed-0`, or `max_kl=0.01/seed-0` where `max_kl` is a list.
      progress: show the mean of all, or what each came to at its end.
      **arguments: of `train`. Lists may be the numbers of the algorithm (`max_kl`, `gae_lambda`, ...), `discount`,
        `steps_per_update`, `max_steps_per_update`, `num_envs` and `segment_length`. `actors` is how many devices there
        are for all of them.

    Returns:
      What each leaves, seeds innermost. If it was interrupted, what each had come to by then; those that had not begun
      are left out.

    Raises:
      As `train`; also ValueError for a list where there may be none, or no seeds.
    """
    return prepare_many(env, seeds=seeds, out=out, **arguments)(progress)


def prepare_many(
    env: str | Environment | Callable[[], Any],
    *,
    seeds: Iterable[int],
    out: str | Path | None = None,
    **arguments: Any,
) -> Callable[[bool], list[Result]]:
    """Checks everything that a person may get wrong, as `train_many`; what is returned trains, given `progress`."""
    require_alone("train_many (--seeds)")
    device = Config(device=arguments.get("device", Config.device)).device
    devices = choose_actors(arguments.pop("actors", None), device=device, program=is_program(env)).devices
    cases = [case._replace(arguments=_placed(case, out)) for case in cases_of(seeds, arguments)]
    environment, close = environment_for(env, 1, arguments.get("max_episode_steps"))
    try:
        if is_program(environment):
            groups = _of_one_program(environment, cases, devices[:1])
            if groups is not None:
                programs = [_planned(environment, [cases[number] for number in group], devices) for group in groups]
                return lambda progress: _in_order(groups, run_programs(programs, progress=progress))
        _planned(environment, cases, devices)
    finally:
        close()
    return lambda progress: _side_by_side(env, cases, devices, progress=progress)


def _planned(environment: Environment, cases: Sequence[Case], devices: Sequence[Any]) -> Program:
    """Trainings that share these devices."""
    number = min(len(devices), len(cases))
    trainings = Trainings(tuple(devices[:number]), -(-len(cases) // number) * number)  # a few more, to be dealt out
    alone = Actors(tuple(devices[:1]))
    plans = [plan(environment, case.arguments, actors=alone, trainings=trainings) for case in cases]
    for each in plans:
        if each.saved is not None:
            require_same_run(each.saved, each.env.name, each.config)
    if is_program(environment) and plans[0].update.learner.waits:
        require_same_sizes(plans)
    return Program([case.name for case in cases], plans, trainings)


def _of_one_program(environment: Environment, cases: Sequence[Case], device: Sequence[Any]) -> list[list[int]] | None:
    """Numbers of the cases, in groups that differ in data alone; None if actors do not wait, so that none can be.

    What is compiled in is not listed anywhere, since an algorithm may close over anything: what is lowered is compared.
    """
    once, programs, groups = TracedOnce(environment), dict[Any, Any](), dict[Any, list[int]]()
    several = len({tuple(case.chosen.items()) for case in cases}) > 1
    for number, case in enumerate(cases):
        chosen = tuple(case.chosen.items())
        if chosen not in programs:
            run = plan(once, case.arguments, actors=Actors(tuple(device)))
            if not run.update.learner.waits:
                return None
            programs[chosen] = (run.update.program(), run.update.algorithm.updates_at_once) if several else ()
        groups.setdefault(programs[chosen], []).append(number)
    return list(groups.values())


def _in_order(groups: Sequence[Sequence[int]], results: Sequence[Result]) -> list[Result]:
    """By the numbers of the cases; results are fewer if they were interrupted."""
    by_number = dict(zip(itertools.chain(*groups), results, strict=False))
    return [by_number[number] for number in sorted(by_number)]


def _placed(case: Case, out: str | Path | None) -> dict[str, Any]:
    return {**case.arguments, "actors": 1, "out": None if out is None else Path(out).expanduser() / case.name}


def _side_by_side(env: Any, cases: Sequence[Case], devices: Sequence[Any], *, progress: bool) -> list[Result]:
    """One training a device at a time, each in a thread that waits for what is compiled."""
    free: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for device in devices:
        free.put(device)
    stopping = threading.Event()

    def one(name: str, arguments: Mapping[str, Any]) -> Result | None:
        if stopping.is_set():
            return None
        device = free.get()
        try:
            where = copy_of(env)  # simulators outside of JAX serve one training only
            asked = arguments.get("on_update")

            def look(row: Row, state: TrainState) -> None:
                if asked is not None:
                    asked(row, state)
                if stopping.is_set():
                    raise KeyboardInterrupt

            try:
                run = begin(plan(where, {**arguments, "on_update": look}, actors=Actors((device,))))
                result = run.run(progress=False)
            finally:
                if where is not env:
                    where.close()
        finally:
            free.put(device)
        returns = result.metrics["return_100"]
        if progress:
            print(f"{name}: return_100 {returns[-1] if len(returns) else np.nan:.1f}", flush=True)
        return result

    with termination_as_interrupt(), ThreadPoolExecutor(len(devices)) as pool:
        waiting = [pool.submit(one, case.name, case.arguments) for case in cases]
        try:
            for each in as_completed(waiting):  # so that the first error ends all
                each.result()
        except BaseException as error:
            stopping.set()  # the others end with a checkpoint
            if isinstance(error, Termination):
                raise Terminated from None
            if not isinstance(error, KeyboardInterrupt):
                raise
    found = [each.result() for each in waiting]
    return [each for each in found if each is not None]
