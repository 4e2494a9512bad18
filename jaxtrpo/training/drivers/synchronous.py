"""Synchronous driver: in each update, all actors collect and then learn together."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax

from jaxtrpo.envs.abilities import times_changed
from jaxtrpo.parallel.actors import filled
from jaxtrpo.parallel.background import in_background
from jaxtrpo.rollout.replay import ReplayInPlace, without_replay
from jaxtrpo.rollout.types import TrainState
from jaxtrpo.training.metrics import Measured, Moment
from jaxtrpo.training.selection import noticing_changes
from jaxtrpo.training.update import Update


def synchronous_updates(
    update: Update,
    state: TrainState,
    read: Callable[[Measured], Measured],
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    changed: Callable[[], TrainState | None] = lambda: None,
    total_segments: Callable[[], int | None] = lambda: None,
) -> Generator[Moment]:
    """Yields updates without end.

    Args:
      update: functions of the run.
      state: placed state to start from.
      read: copies metrics to the host and removes the axis of actors.
      waiting: context that limits how long an update waits for other processes.
      changed: returns a state with the environments to go on from; None to leave them as they are.
      total_segments: returns the number of segments at which the run is now expected to end; None if it is as before.
    """
    noticed = noticing_changes(update.env)
    driver = _many_per_program if update.algorithm.updates_at_once > 1 else _one_by_one

    def with_changes(state: TrainState) -> TrainState:
        other, total = changed(), total_segments()
        state = noticed(state, times_changed(update.env))
        if other is not None:
            state = state._replace(actors=other.actors, best=other.best)
        return state if total is None else state._replace(total_segments=filled(state.total_segments, total))

    return driver(update, state, read, waiting, with_changes)


def _one_by_one(
    update: Update,
    state: TrainState,
    read: Callable[[Measured], Measured],
    waiting: Callable[[], AbstractContextManager[None]],
    with_changes: Callable[[TrainState], TrainState],
) -> Generator[Moment]:
    """Collects and learns in separate programs, one update at a time."""
    lowered = update.lower(state)
    # Perhaps that of a context, which another thread is not in.
    precision = jax.config.values["jax_default_matmul_precision"]

    def compile_learn() -> Any:
        with jax.default_matmul_precision(precision):
            return lowered.compile_learn()

    learn = in_background(compile_learn)  # while the first batch is collected
    collect = lowered.compile_collect()
    has_replay, replay = update.learner.replay is not None, ReplayInPlace(lowered.compile_insert(), state.learner)

    def state_with_replay(state: TrainState) -> TrainState:
        return state._replace(learner=replay.whole(state.learner))

    def state_without_replay(state: TrainState) -> TrainState:
        return state._replace(learner=without_replay(state.learner))

    while True:
        begin = time.perf_counter()
        state, batch = jax.block_until_ready(collect(with_changes(state)))
        collected = time.perf_counter()
        run_learn = learn.result()
        with waiting():
            state, measured = run_learn(state._replace(learner=replay.insert(state.learner, batch)), batch)
            values = jax.tree.map(lambda values: values[..., None, :], read(measured))
        learned = time.perf_counter()
        # Cached, since it may be called more than once.
        reach = functools.cache(functools.partial(state_with_replay, state))
        shown = functools.cache(functools.partial(state_without_replay, state)) if has_replay else reach
        yield Moment(reach, shown, values, collected - begin, learned - collected)


def _many_per_program(
    update: Update,
    state: TrainState,
    read: Callable[[Measured], Measured],
    waiting: Callable[[], AbstractContextManager[None]],
    with_changes: Callable[[TrainState], TrainState],
) -> Generator[Moment]:
    """Makes several updates per program, for updates so short that launching each would dominate."""
    run = update.compile_updates(state)
    while True:
        begin = time.perf_counter()
        with waiting():
            state, measured = run(with_changes(state))
            values = read(measured)  # waits, for all processes if there are several

        def reach(state: TrainState = state) -> TrainState:
            return state

        yield Moment(reach, reach, values, math.nan, time.perf_counter() - begin)
