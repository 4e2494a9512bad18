"""Asynchronous driver: one thread per actor, none of which waits for the others.

Each actor takes the newest learner, collects a batch with it, computes a gradient and applies this to the learner that
is the newest by then. A lock ensures that one actor at a time applies its gradient.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, PyTree

from jaxtrpo.envs.abilities import times_changed
from jaxtrpo.parallel.actors import Actors, first, join_envs
from jaxtrpo.parallel.background import ACTOR
from jaxtrpo.rollout.types import ActorState, Batch, TrainState
from jaxtrpo.training.metrics import Measured, Moment, report
from jaxtrpo.training.selection import noticing_changes
from jaxtrpo.training.update import Update

WAITING_UPDATES = 16  # that actors may be ahead of the caller
STOP_SECONDS = 10.0  # that the caller waits for all actors to stop; a simulator may hang


class _Shared(NamedTuple):
    """The learner, which all actors update, and the state of each actor."""

    state: TrainState  # without `actors`; on the first device, with an axis of one actor
    actors: tuple[ActorState, ...]
    updates: int


def asynchronous_updates(update: Update, state: TrainState, actors: Actors) -> Generator[Moment]:
    """Yields updates in the order in which they are applied, without end; actors stop when the iterator is closed."""
    alone = [Actors((device,)) for device in actors.devices]
    compute, apply = update.programs.get("asynchronous", lambda: _compile(update, state, alone))
    parts = tuple(part_of(state.actors, number) for number in range(actors.count))
    shared = _Shared(part_of(state._replace(actors=None), 0), parts, 0)
    noticed = noticing_changes(update.env)
    lock, stop = threading.Lock(), threading.Event()
    made: queue.Queue[Moment | BaseException] = queue.Queue(WAITING_UPDATES)

    def one_update(number: int) -> None:
        nonlocal shared
        begin = time.perf_counter()
        before, changes = shared, times_changed(update.env)
        now = before.state
        seen = move((now.learner, now.hyperparameters, key_of(now)), actors, number)
        actor, batch, gradient, info = jax.block_until_ready(compute[number](before.actors[number], *seen))
        collected = time.perf_counter()
        with lock:
            # Read again, since other actors have applied their gradients meanwhile.
            staleness = np.full(1, shared.updates - before.updates, np.int32)
            found = move((batch, gradient, {**info, "staleness": staleness}), actors, 0)
            after, measured = jax.block_until_ready(apply(noticed(shared.state, changes), *found))
            reached = (*shared.actors[:number], actor, *shared.actors[number + 1 :])
            shared = _Shared(after, reached, shared.updates + 1)
            # Cached, since it may be called more than once.
            reach = functools.cache(functools.partial(placed_state, update, shared.state, shared.actors))
            learned = time.perf_counter() - collected
            # Under the lock, so that updates are read in the order in which they were applied.
            values = jax.tree.map(lambda values: values[None], first(measured))
            put(made, Moment(reach, reach, values, collected - begin, learned), stop)

    with actor_threads(one_update, actors.count, made, stop):
        while True:
            moment = made.get()
            if isinstance(moment, BaseException):
                raise moment
            yield moment


@contextlib.contextmanager
def actor_threads(
    turn: Callable[[int], None], number: int, made: queue.Queue, stop: threading.Event
) -> Generator[None]:
    """Context in which threads call a function again and again. A thread that does not stop in time is left behind.

    Args:
      turn: function of the index of the thread. An exception is put into `made`, and ends the thread.
      number: number of threads.
      made: queue that is read by the caller.
      stop: event that is set at the end.
    """

    def act(number: int) -> None:
        try:
            while not stop.is_set():
                turn(number)
        except BaseException as error:
            put(made, error, stop)

    threads = [threading.Thread(target=act, args=(which,), name=ACTOR, daemon=True) for which in range(number)]
    try:
        for thread in threads:
            thread.start()
        yield
    finally:
        stop.set()
        ends = time.monotonic() + STOP_SECONDS
        for thread in threads:
            if thread.ident is not None:  # started
                thread.join(max(ends - time.monotonic(), 0.0))


def _compile(update: Update, state: TrainState, alone: list[Actors]) -> tuple[list[Any], Any]:
    """Compiles each actor's part of an update for its device, and applying a gradient for the first device."""
    learner = update.learner.asynchronous
    assert learner is not None
    sizes = update.sizes._replace(num_envs=update.sizes.num_envs // len(alone))

    def collect_and_differentiate(
        actor: ActorState, acting: PyTree, hyperparameters: dict[str, Array], key: Array
    ) -> tuple[ActorState, Batch, PyTree, dict[str, Array]]:
        actor, batch = update.collect(actor, acting, hyperparameters)
        return actor, batch, *learner.gradient(acting, batch, hyperparameters, key)

    def apply(state: TrainState, batch: Batch, gradient: PyTree, info: dict[str, Array]) -> tuple[TrainState, Measured]:
        learned = learner.apply(state.learner, gradient, state.hyperparameters)
        return report(state, batch, learned, info, update.rule, sizes)

    shared = part_of(state._replace(actors=None), 0)
    arguments = shared.learner, shared.hyperparameters, key_of(shared)
    lowered = [
        one.map(collect_and_differentiate).lower(part_of(state.actors, number), *arguments)
        for number, one in enumerate(alone)
    ]
    _, batch, gradient, info = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), lowered[0].out_info
    )
    info = {**info, "staleness": jax.ShapeDtypeStruct((1,), np.int32)}
    applying = alone[0].map(apply).lower(shared, batch, gradient, info).compile()
    return [one.compile() for one in lowered], applying


@jax.jit
def key_of(state: TrainState) -> Array:
    """Returns the key of the next update, for a state with an axis of one actor."""
    return jax.vmap(jax.random.fold_in)(state.key, state.segments)


def placed_state(update: Update, state: TrainState, parts: Sequence[ActorState]) -> TrainState:
    """Returns the placed state of a run.

    Args:
      update: functions of the run.
      state: state without actors, with an axis of one actor.
      parts: state of each actor, with an axis of one actor.
    """
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *map(join_envs, parts))
    return update.place(first(state)._replace(actors=joined))


def part_of(tree: PyTree, number: int) -> PyTree:
    """Returns one actor's part, on its device, with an axis of one actor."""
    return jax.tree.map(lambda leaf: leaf.addressable_shards[number].data, tree)


def move(tree: PyTree, actors: Actors, number: int) -> PyTree:
    """Moves a tree to an actor's device."""
    return jax.device_put(tree, actors.devices[number])


def put(made: queue.Queue, item: object, stop: threading.Event) -> None:
    """Puts an item into a queue when there is room, or gives up once `stop` is set, after which nothing is read."""
    while not stop.is_set():
        try:
            made.put(item, timeout=0.1)
            return
        except queue.Full:
            pass
