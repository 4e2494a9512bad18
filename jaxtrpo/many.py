"""`train_many`: seeds and settings side by side."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxtrpo.actors import Actors, Trainings
from jaxtrpo.algorithms.algorithm import Algorithm, starting_with
from jaxtrpo.config import Config
from jaxtrpo.devices import choose_actors
from jaxtrpo.envs.base import Environment
from jaxtrpo.envs.registry import environment_for, is_program
from jaxtrpo.loop import Result
from jaxtrpo.many_as_one import require_one_program, run_as_one
from jaxtrpo.plan import Options, begin, plan
from jaxtrpo.processes import require_alone
from jaxtrpo.runs.checkpoint import require_same_run
from jaxtrpo.runs.metrics import Row
from jaxtrpo.runs.space import with_argument
from jaxtrpo.runs.termination import Terminated, Termination, termination_as_interrupt
from jaxtrpo.settings import require_number, require_whole
from jaxtrpo.types import TrainState
from jaxtrpo.words import parse

SHORT = ("max_kl", "steps_per_update")  # settings of the run that are short for one of the algorithm


class Case(NamedTuple):
    """One of the trainings."""

    name: str  # path below `out`
    arguments: Mapping[str, Any]  # of `train`


def train_many(
    env: str | Environment | Callable[[], Any],
    *,
    seeds: Iterable[int] = (0,),
    out: str | Path | None = None,
    progress: bool = True,
    **arguments: Any,
) -> list[Result]:
    """Trains with every seed and every combination of settings that are given as lists.

    Trainings in environments that are JAX programs (Brax) become one program, mapped over them: each is what it would
    be alone, to rounding. Others run side by side, one a core, and are what they would be alone with one actor. So do
    those of algorithms whose actors do not wait (`a3c`, asynchronous `naf`).

    Args:
      env: as for `train`.
      seeds: whole numbers.
      out: directory below which each has its own, such as `seed-0`, or `max_kl=0.01/seed-0` where `max_kl` is a list.
      progress: show the mean of all, or what each came to at its end.
      **arguments: of `train`. `max_kl`, `steps_per_update` and the other settings of the algorithm that are data to
        compiled code may be lists. `actors` is how many devices there are for all of them.

    Returns:
      What each leaves, seeds innermost. If it was interrupted, what each had come to by then.

    Raises:
      As `train`; also ValueError for a list where a setting is compiled in, or no seeds.
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
        number = min(len(devices), len(cases))
        trainings = Trainings(devices[:number], -(-len(cases) // number) * number)  # a few more, to be dealt out
        alone = Actors(devices[:1])
        planned = [plan(environment, case.arguments, actors=alone, trainings=trainings) for case in cases]
        for run, saved in planned:
            if saved is not None:
                require_same_run(saved, run.env.name, run.config)
        if is_program(environment) and planned[0][0].update.learner.waits:
            require_one_program([run for run, _ in planned])
            return lambda progress: run_as_one(planned, trainings, progress=progress)
    finally:
        close()
    return lambda progress: _side_by_side(env, cases, devices, progress=progress)


def cases_of(seeds: Iterable[int], arguments: Mapping[str, Any]) -> list[Case]:
    """Every training.

    Raises:
      ValueError: a list where there may be none.
    """
    seeds = [seed.item() if isinstance(seed, np.generic) else seed for seed in seeds]
    if not seeds:
        raise ValueError("seeds: give at least one")
    for seed in seeds:
        require_whole(0, seed=seed)
    several = (list, tuple, range, np.ndarray)  # an algorithm is a tuple too, of its own type
    lists = {
        name: [each.item() if isinstance(each, np.generic) else each for each in value]
        for name, value in arguments.items()
        if type(value) in several
    }
    given = arguments.get("algorithm", Config.algorithm)
    algorithm = parse("algorithm", given) if isinstance(given, str) else given
    for name, values in lists.items():
        if name not in algorithm.hyperparameters and name in (*Config.__dataclass_fields__, *Options._fields):
            raise ValueError(
                f"{name}={values} is compiled in, so that one call has one value of it; lists may be seeds, "
                f"{', '.join(algorithm.hyperparameters)}"
            )
        if not values:
            raise ValueError(f"{name}=[]: give at least one value")
        for value in values:
            require_number("a number", lambda value: True, **{name: value})
    common = {name: value for name, value in arguments.items() if name not in lists}
    found = []
    for values in itertools.product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        settings = _with_chosen(common, algorithm, chosen, in_words=isinstance(given, str))
        parts = [f"{name}={value:g}" for name, value in chosen.items()]
        found += [Case("/".join([*parts, f"seed-{seed}"]), {**settings, "seed": seed}) for seed in seeds]
    names = [case.name for case in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"seeds, {', '.join(lists) or 'settings'}: {twice[0]} is there twice")
    return found


def _with_chosen(
    common: Mapping[str, Any], algorithm: Algorithm, chosen: Mapping[str, Any], *, in_words: bool
) -> dict[str, Any]:
    settings, words = dict(common), algorithm.words
    for name, value in chosen.items():
        if name in SHORT:
            settings[name] = value
            continue
        words = with_argument(words, name, value)
        # Words are checked by who makes algorithms of them; one of a person's own may not be made so.
        algorithm = parse("algorithm", words) if in_words else starting_with(algorithm, **{name: value})
        settings["algorithm"] = algorithm._replace(words=words)
    return settings


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
            where = getattr(env, "copy", lambda: env)()  # simulators that are elsewhere are in one training only
            asked = arguments.get("on_update")

            def look(row: Row, state: TrainState) -> None:
                if asked is not None:
                    asked(row, state)
                if stopping.is_set():
                    raise KeyboardInterrupt

            try:
                run = begin(*plan(where, {**arguments, "on_update": look}, actors=Actors((device,))))
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
        waiting = [pool.submit(one, name, arguments) for name, arguments in cases]
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
