"""`train_many`: trains with several seeds and settings."""

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

    Each training gives the result of `train` with one actor and the same settings. In environments that are JAX
    programs (such as Brax), results are equal up to rounding: trainings that differ only in seeds and traced settings
    are compiled as one program, mapped over them; for each value of a setting that is compiled in, such as
    `gae_lambda`, there is another program, and programs run one after the other. In all other environments, trainings
    run side by side, one per core, with bit-identical results. Algorithms with asynchronous actors (`a3c`,
    `naf(asynchronous=True)`) always train side by side.

    Args:
      env: see `train`.
      seeds: non-negative integers.
      out: parent of the directories of all trainings: `seed-0`, or `max_kl=0.01/seed-0` if `max_kl` is a list.
      progress: show the mean over trainings that are one program, or the final return of each training otherwise.
      **arguments: other arguments of `train`. Numbers of the algorithm (`max_kl`, `gae_lambda`, ...), `discount`,
        `steps_per_update`, `max_steps_per_update`, `num_envs` and `segment_length` may be lists. `actors` is the number
        of devices for all trainings together.

    Returns:
      One result per training, seeds varying fastest. After an interruption, results are those reached by then, and
      trainings that had not started are left out.

    Raises:
      The exceptions of `train`; also ValueError if there are no seeds, or an argument must not be a list.
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
    """Builds one program of trainings that share these devices."""
    number = min(len(devices), len(cases))
    trainings = Trainings(tuple(devices[:number]), -(-len(cases) // number) * number)  # rounded up, to fill all devices
    alone = Actors(tuple(devices[:1]))
    plans = [plan(environment, case.arguments, actors=alone, trainings=trainings) for case in cases]
    for each in plans:
        if each.saved is not None:
            require_same_run(each.saved, each.env.name, each.config)
    if is_program(environment) and plans[0].update.learner.waits:
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
            run = plan(once, case.arguments, actors=Actors(tuple(device)))
            if not run.update.learner.waits:
                return None
            programs[chosen] = (run.update.program(), run.update.algorithm.updates_at_once) if several else ()
        groups.setdefault(programs[chosen], []).append(number)
    return list(groups.values())


def _in_order(groups: Sequence[Sequence[int]], results: Sequence[Result]) -> list[Result]:
    """Returns results in the order of the cases; after an interruption, there are fewer results than cases."""
    by_number = dict(zip(itertools.chain(*groups), results, strict=False))
    return [by_number[number] for number in sorted(by_number)]


def _placed(case: Case, out: str | Path | None) -> dict[str, Any]:
    return {**case.arguments, "actors": 1, "out": None if out is None else Path(out).expanduser() / case.name}


def _side_by_side(env: Any, cases: Sequence[Case], devices: Sequence[Any], *, progress: bool) -> list[Result]:
    """Trains one case per device at a time, each in its own thread."""
    free: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for device in devices:
        free.put(device)
    stopping = threading.Event()

    def one(name: str, arguments: Mapping[str, Any]) -> Result | None:
        if stopping.is_set():
            return None
        device = free.get()
        try:
            own_env = copy_of(env)  # simulators outside of JAX serve one training only
            on_update = arguments.get("on_update")

            def call_or_stop(row: Row, state: TrainState) -> None:
                if on_update is not None:
                    on_update(row, state)
                if stopping.is_set():
                    raise KeyboardInterrupt

            try:
                run = begin(plan(own_env, {**arguments, "on_update": call_or_stop}, actors=Actors((device,))))
                result = run.run(progress=False)
            finally:
                if own_env is not env:
                    own_env.close()
        finally:
            free.put(device)
        returns = result.metrics["return_100"]
        if progress:
            print(f"{name}: return_100 {returns[-1] if len(returns) else np.nan:.1f}", flush=True)
        return result

    with termination_as_interrupt(), ThreadPoolExecutor(len(devices)) as pool:
        waiting = [pool.submit(one, case.name, case.arguments) for case in cases]
        try:
            for each in as_completed(waiting):  # in this order, the first error ends all
                each.result()
        except BaseException as error:
            stopping.set()  # the others end with a checkpoint
            if isinstance(error, Termination):
                raise Terminated from None
            if not isinstance(error, KeyboardInterrupt):
                raise
    found = [each.result() for each in waiting]
    return [each for each in found if each is not None]
