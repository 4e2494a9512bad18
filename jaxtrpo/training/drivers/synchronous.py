"""Updates for which all actors collect, and then learn together."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext

import jax

from jaxtrpo.parallel.background import in_background
from jaxtrpo.rollout.replay import ReplayInPlace
from jaxtrpo.rollout.types import TrainState
from jaxtrpo.training.metrics import Measured, Moment
from jaxtrpo.training.update import Update


def synchronous_updates(
    update: Update,
    state: TrainState,
    read: Callable[[Measured], Measured],
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Generator[Moment]:
    """Updates without end, from a state on.

    Args:
      update: its functions.
      state: on the devices.
      read: copies metrics to the host, and takes away the axis of actors.
      waiting: limits how long an update waits for other processes.
    """
    return (_several if update.algorithm.updates_at_once > 1 else _one_by_one)(update, state, read, waiting)


def _one_by_one(
    update: Update,
    state: TrainState,
    read: Callable[[Measured], Measured],
    waiting: Callable[[], AbstractContextManager[None]],
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
        run_learn = learn()
        with waiting():
            state, measured = run_learn(state._replace(learner=replay.insert(state.learner, batch)), batch)
            values = jax.tree.map(lambda values: values[..., None, :], read(measured))
        learned = time.perf_counter()
        # Whoever asks twice gets the same.
        reach = functools.cache(functools.partial(whole, state))
        yield Moment(reach, values, collected - begin, learned - collected)


def _several(
    update: Update,
    state: TrainState,
    read: Callable[[Measured], Measured],
    waiting: Callable[[], AbstractContextManager[None]],
) -> Generator[Moment]:
    """Updates so short that starting each would take longest: several are one program."""
    run = update.compile_several(state)
    while True:
        begin = time.perf_counter()
        with waiting():
            state, measured = jax.block_until_ready(run(state))
            values = read(measured)
        yield Moment(lambda state=state: state, values, math.nan, time.perf_counter() - begin)
