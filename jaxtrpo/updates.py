"""Updates for which all actors collect, and then learn together; and what updates are to who reads them."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from jaxtrpo.adapting import Column
from jaxtrpo.background import in_background
from jaxtrpo.episodes import EpisodeInfo
from jaxtrpo.in_place import ReplayInPlace
from jaxtrpo.types import TrainState
from jaxtrpo.update import Update

if TYPE_CHECKING:
    from jaxtrpo.runs.metrics import Row


class Moment(NamedTuple):
    """Updates, as they were made: one, or several that are one program."""

    state: Callable[[], TrainState]  # after them, on the actors' devices; made when someone asks
    columns: tuple[Column, ...]
    measured: np.ndarray  # [update, column]; [training, update, column] where several trainings are one program
    collect_seconds: float  # of all of them; NaN where collecting and learning are one program
    learn_seconds: float


def synchronous_updates(
    update: Update,
    state: TrainState,
    read: Callable[[Array], np.ndarray],
    meet: Callable[[], None] | None = None,
) -> Generator[Moment]:
    """Updates without end, from a state on.

    Args:
      update: its functions.
      state: on the devices.
      read: what was measured, on the host, without the axis of actors.
      meet: called before actors first meet in an update.
    """
    meet = meet or (lambda: None)
    return (_several if update.at_once > 1 else _one_by_one)(update, state, read, meet)


def _one_by_one(
    update: Update, state: TrainState, read: Callable[[Array], np.ndarray], meet: Callable[[], None]
) -> Generator[Moment]:
    """All actors collect, and then they learn."""
    lowered = update.lower(state)
    learn = in_background(lowered.compile_learn)  # while the first batch is collected
    collect = lowered.compile_collect()
    replay = ReplayInPlace(lowered.compile_insert(), state.learner)

    def whole(state: TrainState) -> TrainState:
        return state._replace(learner=replay.whole(state.learner))

    while True:
        begin = time.perf_counter()
        state, batch = jax.block_until_ready(collect(state))
        collected = time.perf_counter()
        run_learn, columns = learn()
        meet()
        state, measured = run_learn(state._replace(learner=replay.take_in(state.learner, batch)), batch)
        values = read(measured)[..., None, :]
        learned = time.perf_counter()
        # Whoever asks twice gets the same.
        reach = functools.cache(functools.partial(whole, state))
        yield Moment(reach, columns, values, collected - begin, learned - collected)


def _several(
    update: Update, state: TrainState, read: Callable[[Array], np.ndarray], meet: Callable[[], None]
) -> Generator[Moment]:
    """Updates so short that starting each would take longest: several are one program."""
    run, columns = update.compile_several(state)
    while True:
        begin = time.perf_counter()
        meet()
        state, measured = jax.block_until_ready(run(state))
        values = read(measured)
        yield Moment(lambda state=state: state, columns, values, math.nan, time.perf_counter() - begin)


def rows_of(moment: Moment, measured: np.ndarray, last: Row, before: float, now: float) -> list[dict[str, Any]]:
    """Rows of metrics, one an update; none if there was none.

    Args:
      moment: the updates.
      measured: [update, column]; NaN for those that were not made, since the run was over.
      last: the row before them.
      before: seconds of the run when they began.
      now: and when they were done.
    """
    made = measured[~np.isnan(measured).all(axis=1)]
    update, env_steps = int(last["update"] or 0), int(last["env_steps"] or 0)
    rows = []
    for part, values in enumerate(made, 1):
        of_update = as_row(moment.columns, values)
        env_steps += int(of_update["steps_per_update"])
        row = {
            "update": update + part,
            "env_steps": env_steps,
            "wall_seconds": before + (now - before) * part / len(made),
            "collect_seconds": moment.collect_seconds / len(made),
            "learn_seconds": moment.learn_seconds / len(made),
            **of_update,
            "eval_return": math.nan,
        }
        rows.append(row)
    return rows


def no_rows(hyperparameters: Iterable[str]) -> dict[str, np.ndarray]:
    """Columns of a run that has made no update: those that every run has, empty.

    What an algorithm measures beside them is only known when its update is traced.

    Args:
      hyperparameters: names of the settings that are data, which are columns, too.
    """
    settings = [name for name in hyperparameters if name != "steps_per_update"]
    seconds = ("wall_seconds", "collect_seconds", "learn_seconds")
    names = ("update", "env_steps", *seconds, "steps_per_update", *settings, *EpisodeInfo._fields, "eval_return")
    counts = ("update", "env_steps", "steps_per_update", "episodes", "invalid_steps")
    return {name: np.zeros(0, np.int64 if name in counts else np.float64) for name in names}


def as_row(columns: tuple[Column, ...], values: np.ndarray) -> dict[str, Any]:
    """Numbers of one update by name; counts are whole."""
    return {
        column.name: round(value) if column.whole and math.isfinite(value) else value
        for column, value in zip(columns, values.tolist(), strict=True)
    }
