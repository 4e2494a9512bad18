"""Replay driver: one thread per actor keeps collecting while the caller's thread learns from a replay buffer.

Each turn inserts all batches that were collected meanwhile into the buffer, and makes as many gradient steps as are due
for at most one batch per actor. Each batch makes a row of metrics.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, PyTree

from jaxtrpo.envs.abilities import times_changed
from jaxtrpo.ops.moments import Moments
from jaxtrpo.parallel.actors import Actors, first
from jaxtrpo.rollout.replay import Insert, ReplayInPlace, compile_insert, without_replay
from jaxtrpo.rollout.types import ActorState, Batch, TrainState
from jaxtrpo.training.drivers.asynchronous import actor_threads, key_of, move, part_of, placed_state, put
from jaxtrpo.training.metrics import Measured, Moment, report
from jaxtrpo.training.selection import noticing_changes
from jaxtrpo.training.update import Update


class _Acting(NamedTuple):
    """Fields of the learner that actors need to collect."""

    policy: PyTree
    obs_moments: Moments


class _Collected(NamedTuple):
    number: int  # index of the actor
    actor: ActorState  # after collecting
    batch: Batch
    changes: int  # how often simulators had been changed before


class _Compiled(NamedTuple):
    collect: list[Any]  # one function per actor
    insert: Insert
    observe: Any  # (learner state, batch) -> learner state, both without the replay buffer
    train: Any  # (learner state, new steps, hyperparameters, key) -> (learner state without the buffer, info)
    report: Any  # (state, batch, info, policy and moments) -> (state, measured)


def replaying_updates(update: Update, state: TrainState, actors: Actors) -> Generator[Moment]:
    """Yields updates in the order in which batches arrive, without end; actors stop when the iterator is closed."""
    compiled = update.programs.get("replaying", lambda: _compile(update, state, actors))
    reached = [part_of(state.actors, number) for number in range(actors.count)]
    now = part_of(state._replace(actors=None), 0)
    replay = ReplayInPlace(compiled.insert, now.learner)
    published = _Acting(now.learner.policy, now.learner.obs_moments), now.hyperparameters  # what actors read
    assert update.learner.replay is not None
    # More batches would be overwritten before they were learned from, so actors wait when the queue is full.
    largest = update.sizes.max_segments * _steps_of_a_segment(update, actors)
    room = max(update.learner.replay.capacity // largest, 1)
    noticed = noticing_changes(update.env)
    made: queue.Queue[_Collected | BaseException] = queue.Queue(room)
    stop = threading.Event()
    collecting = list(reached)  # newest states of the actors, ahead of those that were learned from

    def collect(number: int) -> None:
        seen, changes = move(published, actors, number), times_changed(update.env)
        collecting[number], batch = jax.block_until_ready(compiled.collect[number](collecting[number], *seen))
        put(made, _Collected(number, collecting[number], batch, changes), stop)

    with actor_threads(collect, actors.count, made, stop):
        while True:
            taken = _take_all(made)
            begin = time.perf_counter()
            steps = [int(first(one.batch.num_segments)) * _steps_of_a_segment(update, actors) for one in taken]
            taken = taken[: _batches_to_go(update, now, actors, steps)]
            moved = [move(one.batch, actors, 0) for one in taken]
            learner = now.learner
            for batch in moved:
                learner = replay.insert(learner, batch)
                learner = compiled.observe(without_replay(learner), batch)._replace(replay=learner.replay)
            new_steps = np.full(1, sum(steps[: min(len(taken), actors.count)]), np.int32)
            learned, info = compiled.train(learner, new_steps, now.hyperparameters, key_of(now))
            acting = _Acting(learned.policy, learned.obs_moments)
            now, measured = now._replace(learner=None), []
            for one, batch in zip(taken, moved, strict=True):
                now, values = compiled.report(noticed(now, one.changes), batch, info, acting)
                measured.append(first(values))
                reached[one.number] = one.actor
            now = now._replace(learner=learned._replace(replay=learner.replay))
            published = acting, now.hyperparameters
            # Cached, since each row may need it.
            parts = tuple(reached)
            reach = functools.cache(functools.partial(_state_of_run, update, now, replay.whole, parts))
            shown = functools.cache(functools.partial(_state_of_run, update, now, without_replay, parts))
            rows = jax.tree.map(lambda *values: np.stack(values), *measured)
            yield Moment(reach, shown, rows, float("nan"), time.perf_counter() - begin)


def _steps_of_a_segment(update: Update, actors: Actors) -> int:
    """Returns the environment steps of one actor in a segment."""
    return update.sizes.segment_steps // actors.count


def _batches_to_go(update: Update, state: TrainState, actors: Actors, steps: list[int]) -> int:
    """Returns the number of batches, of the given steps, until the run ends; later batches are not learned from."""
    left = int(first(state.total_segments)) - int(first(state.segments))
    return int(np.searchsorted(np.cumsum(steps), left * _steps_of_a_segment(update, actors))) + 1


def _take_all(made: queue.Queue) -> list[_Collected]:
    """Takes all batches from the queue, at least one; raises the error of a thread once it is first in the queue."""
    taken = [made.get()]
    if isinstance(taken[0], BaseException):
        raise taken[0]
    while not made.empty() and not isinstance(made.queue[0], BaseException):  # only this thread takes from it
        taken.append(made.get())
    return taken


def _state_of_run(
    update: Update, state: TrainState, buffer: Callable[[PyTree], PyTree], reached: tuple[ActorState, ...]
) -> TrainState:
    """Returns the placed state of the run, its learner with or without the replay buffer."""
    return placed_state(update, state._replace(learner=buffer(state.learner)), reached)


def _compile(update: Update, state: TrainState, actors: Actors) -> _Compiled:
    """Compiles collecting for each actor's device, and learning for the first device."""
    learning = update.learner.replaying
    assert learning is not None and update.learner.replay is not None
    alone = [Actors((device,)) for device in actors.devices]
    sizes = update.sizes._replace(num_envs=update.sizes.num_envs // actors.count)
    shared = part_of(state._replace(actors=None), 0)
    acting = _Acting(shared.learner.policy, shared.learner.obs_moments)
    collect = [
        one.map(update.collect).lower(part_of(state.actors, number), acting, shared.hyperparameters)
        for number, one in enumerate(alone)
    ]

    def shape(lowered: Any) -> PyTree:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), lowered.out_info)

    _, batch = shape(collect[0])
    insert = compile_insert(update.learner.replay, alone[0].map, shared.learner.replay, batch)
    observe = alone[0].map(learning.observe).lower(without_replay(shared.learner), batch).compile()
    new_steps = jax.ShapeDtypeStruct((1,), np.int32)

    def train_without_replay(*arguments: PyTree) -> tuple[PyTree, dict[str, Array]]:
        learned, info = learning.train(*arguments)
        return without_replay(learned), info

    train = alone[0].map(train_without_replay).lower(shared.learner, new_steps, shared.hyperparameters, key_of(shared))
    _, info = shape(train)

    def count(state: TrainState, batch: Batch, info: dict[str, Array], acting: _Acting) -> tuple[TrainState, Measured]:
        return report(state, batch, None, info, update.rule, sizes, acting)

    # Without the learner, since its ring would be copied.
    counting = alone[0].map(count).lower(shared._replace(learner=None), batch, info, acting).compile()
    return _Compiled([one.compile() for one in collect], insert, observe, train.compile(), counting)
