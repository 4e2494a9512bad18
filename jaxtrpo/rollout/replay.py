"""Replay buffer: the last steps of all environments, in a ring that compiled code fills and draws from."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, UInt32

from jaxtrpo.config.messages import short
from jaxtrpo.parallel.actors import copied
from jaxtrpo.parallel.background import in_background
from jaxtrpo.parallel.collectives import gather_envs
from jaxtrpo.rollout.types import Batch

MOST_STEPS = 2**31 - 1  # that a 32-bit index counts


class Transitions(NamedTuple):
    """Steps, each by itself; any leading axes."""

    obs: Float[Array, "*rows obs"]  # as the simulator gave it
    action: Float[Array, "*rows action"]  # as sampled, in policy units, not clipped
    reward: Float[Array, "*rows"]
    terminated: Float[Array, "*rows"]  # 1 where nothing follows, else 0
    final_obs: Float[Array, "*rows obs"]  # what the step led to, before any reset
    # Steps taken in the episode before this one. From 2**24 on neighbours may look alike; a stretch of such an episode
    # is then cut, and bootstraps, where it need not.
    elapsed: Float[Array, "*rows"]
    weight: Float[Array, "*rows"]  # 1 for a step that counts, 0 for one whose simulation broke


class Ring(NamedTuple):
    """What a replay buffer holds. Every actor has the same, in the order that one actor would have collected it in."""

    rows: Float[Array, "row number"]  # the fields of `Transitions`, side by side in memory
    next_row: Int[Array, ""]  # where the next segment begins
    filled: Int[Array, ""]  # rows


class Replay(NamedTuple):
    """Pure functions on a `Ring`."""

    capacity: int  # environment steps of all actors
    nbytes: int  # of a ring
    empty: Callable[[], Ring]
    insert: Callable[[Ring, Batch], Ring]
    draw: Callable[[Ring, PRNGKeyArray | UInt32[Array, "2"], int], Transitions]  # so many, with replacement
    # So many stretches, each the steps of one environment in one segment; axes stretch, time.
    draw_stretches: Callable[[Ring, PRNGKeyArray | UInt32[Array, "2"], int], Transitions]

    def in_words(self) -> str:
        """What a person should know of it."""
        return f"replay buffer: the last {self.capacity:,} steps, {_in_mib(self.nbytes)} an actor"

    def require_memory(self, learners: int, memory: float) -> None:
        """Refuses a ring that does not fit into memory.

        Args:
          learners: how many have a ring: actors of one training, or trainings.
          memory: bytes for all of them.

        Raises:
          ValueError: one sentence that says how large it is.
        """
        # That of the beginning, one that someone has asked for, such as a checkpoint, and the newest.
        if 3 * learners * self.nbytes > memory:
            raise ValueError(
                f"replay: {self.capacity:,} steps take {_in_mib(self.nbytes)}, three times for each of {learners} that "
                f"learn, and there are {_in_mib(memory)} of memory"
            )


def _in_mib(nbytes: float) -> str:
    return f"{nbytes / 2**20:,.0f} MiB"


def make_replay(
    capacity: int, *, segment_steps: int, segment_length: int, observation_size: int, action_size: int
) -> Replay:
    """A ring of the last steps.

    A batch takes time in proportion to its steps, a draw in proportion to its rows. A compiled program that returns the
    ring copies it, unless the memory of the one before is donated to it (see `ReplayInPlace`).

    Args:
      capacity: environment steps of all actors that are kept at least; whole segments are.
      segment_steps: environment steps of all actors in a segment; segments come whole, or one actor's part alone.
      segment_length: steps of each environment in a segment.
      observation_size: numbers in an observation.
      action_size: numbers in an action.

    Raises:
      ValueError: more steps than an index counts.
    """
    num_envs = segment_steps // segment_length
    if capacity > MOST_STEPS - segment_steps:
        raise ValueError(f"replay={short(capacity)} must be a number of steps below 2^31")
    capacity = -(-capacity // segment_steps) * segment_steps
    sizes = (observation_size, action_size, 1, 1, observation_size, 1, 1)  # of the fields
    ends = np.cumsum(sizes)

    def empty() -> Ring:
        return Ring(jnp.zeros((capacity, ends[-1])), jnp.int32(0), jnp.int32(0))

    def insert(ring: Ring, batch: Batch) -> Ring:
        # Outside of the loop. XLA keeps meetings of actors in one order, but forgets about those in loops when it reads
        # the program from the compilation cache; two that cross wait for each other for ever.
        everyone = gather_envs(batch.steps, axis=2)

        def one(index: Int[Array, ""], ring: Ring) -> Ring:
            steps = jax.tree.map(lambda leaf: leaf[index], everyone)
            found = Transitions(
                steps.obs, steps.action, steps.reward, steps.terminated, steps.final_obs, steps.elapsed, ~steps.invalid
            )
            number = steps.reward.size  # of one actor's steps where actors do not wait for each other
            rows = [leaf.reshape(number, -1).astype(jnp.float32) for leaf in found]
            # As it is but where a run goes on with fewer actors, whose larger parts would not meet the end of the ring.
            begin = ring.next_row // number * number
            held = jax.lax.dynamic_update_slice_in_dim(ring.rows, jnp.concatenate(rows, axis=1), begin, 0)
            end = begin + number
            return Ring(held, end % capacity, jnp.maximum(ring.filled, end))

        return jax.lax.fori_loop(0, batch.num_segments, one, ring)

    def rows_at(ring: Ring, chosen: Int[Array, "*rows"]) -> Transitions:
        # The barrier keeps XLA from fetching every row again where it is used.
        drawn = jax.lax.optimization_barrier(ring.rows[chosen])
        obs, action, reward, terminated, final_obs, elapsed, weight = jnp.split(drawn, ends[:-1], axis=-1)
        return Transitions(obs, action, reward[..., 0], terminated[..., 0], final_obs, elapsed[..., 0], weight[..., 0])

    def draw(ring: Ring, key: PRNGKeyArray | UInt32[Array, "2"], number: int) -> Transitions:
        return rows_at(ring, jax.random.randint(key, (number,), 0, jnp.maximum(ring.filled, 1)))

    def draw_stretches(ring: Ring, key: PRNGKeyArray | UInt32[Array, "2"], number: int) -> Transitions:
        filled = jnp.maximum(ring.filled // segment_length, 1)  # stretches
        segment, env = jnp.divmod(jax.random.randint(key, (number,), 0, filled), num_envs)
        begin = segment * segment_steps + env
        return rows_at(ring, begin[:, None] + num_envs * jnp.arange(segment_length))

    return Replay(capacity, 4 * capacity * int(ends[-1]), empty, insert, draw, draw_stretches)


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
