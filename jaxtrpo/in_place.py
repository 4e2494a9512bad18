"""The replay buffer of a run, into which batches are written in place."""

from __future__ import annotations

import threading
from collections.abc import Callable

import jax
from jaxtyping import PyTree

from jaxtrpo.actors import copied
from jaxtrpo.background import in_background
from jaxtrpo.replay import Replay, Ring
from jaxtrpo.types import Batch

# (a ring, a batch) -> the ring with it; takes the memory of the first.
Insert = Callable[[Ring, Batch], Ring]
Map = Callable[..., jax.stages.Wrapped]


class ReplayInPlace:
    """The buffer that learner states have as their field `replay`, if they have one.

    To copy it for each batch may take longer than to collect one, since memory of that size comes from the system page
    by page. So the ring of before gives its memory to the next. A state that was given out stays what it is: the next
    batch then goes into a copy.
    """

    def __init__(self, insert: Insert | None, learner: PyTree):
        """Begins with a learner state, which stays what it is.

        Args:
          insert: compiled; None if learner states have no buffer.
          learner: the first, on the devices.
        """
        self._insert, self._given_out, self._lock = insert, True, threading.Lock()
        self._newest = None if insert is None else learner.replay

    def take_in(self, learner: PyTree, batch: Batch) -> PyTree:
        """The newest learner state with a batch in its buffer. The states before are whole by `whole` alone."""
        if self._insert is None:
            return learner
        # By a thread that no interrupt reaches: between the end of one ring and the next one's name it would lose both.
        in_background(self._write, learner.replay, batch)()
        return learner._replace(replay=self._newest)

    def _write(self, ring: Ring, batch: Batch) -> None:
        assert self._insert is not None and self._newest is not None
        with self._lock:
            rows = copied(self._newest.rows) if self._given_out else self._newest.rows
            self._newest, self._given_out = self._insert(ring._replace(rows=rows), batch), False

    def whole(self, learner: PyTree) -> PyTree:
        """A learner state with its buffer, for who keeps it.

        What was taken in since, if its learning did not end, lies where the oldest steps were: nobody reads these any
        more, since a run goes on with the batch that takes their place.
        """
        if self._insert is None:
            return learner
        with self._lock:
            assert self._newest is not None
            self._given_out = True
            return learner._replace(replay=learner.replay._replace(rows=self._newest.rows))


def compile_insert(replay: Replay, over_actors: Map, ring: Ring, batch: Batch) -> Insert:
    """Compiles a buffer's `insert`, mapped over actors.

    Args:
      replay: the buffer.
      over_actors: maps a function; see `Actors.map`.
      ring: like those that it will get.
      batch: like those.
    """

    def insert(rows: jax.Array, rest: Ring, batch: Batch) -> Ring:
        return replay.insert(rest._replace(rows=rows), batch)

    def without_rows(ring: Ring) -> Ring:
        return ring._replace(rows=None)  # pyright: ignore[reportArgumentType]

    compiled = over_actors(insert, donate=(0,)).lower(ring.rows, without_rows(ring), batch).compile()
    return lambda ring, batch: compiled(ring.rows, without_rows(ring), batch)


def inserted(replay: Replay | None, learner: PyTree, batch: Batch) -> PyTree:
    """Inside a mapped function: a learner state with a batch in its buffer, if it has one."""
    return learner if replay is None else learner._replace(replay=replay.insert(learner.replay, batch))


def without_replay(learner: PyTree) -> PyTree:
    """A learner state as programs return it: a buffer that goes through one is copied."""
    return learner._replace(replay=None)
