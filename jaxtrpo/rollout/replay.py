"""Replay buffer: a ring buffer of the last steps of all environments, filled and sampled by compiled code."""

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

MOST_STEPS = 2**31 - 1  # largest 32-bit index


class Transitions(NamedTuple):
    """Independent steps, with any leading axes."""

    obs: Float[Array, "*rows obs"]  # unnormalised
    action: Float[Array, "*rows action"]  # as sampled, in policy units, not clipped
    reward: Float[Array, "*rows"]
    terminated: Float[Array, "*rows"]  # 1 if the step terminated the episode, else 0
    final_obs: Float[Array, "*rows obs"]  # observation after the step, before any reset
    # Steps taken in the episode before this one. From 2**24 on, consecutive values may be equal in float32; a stretch
    # of such an episode is then cut and bootstrapped unnecessarily.
    elapsed: Float[Array, "*rows"]
    weight: Float[Array, "*rows"]  # 1; 0 for an invalid step


class Ring(NamedTuple):
    """Contents of a replay buffer: the same for every actor, in the order of collection by a single actor."""

    rows: Float[Array, "row number"]  # fields of `Transitions`, concatenated
    next_row: Int[Array, ""]  # first row of the next segment
    filled: Int[Array, ""]  # number of rows with data


class Replay(NamedTuple):
    """Pure functions on a `Ring`."""

    capacity: int  # environment steps of all actors
    nbytes: int  # size of a ring in bytes
    empty: Callable[[], Ring]
    insert: Callable[[Ring, Batch], Ring]
    draw: Callable[[Ring, PRNGKeyArray | UInt32[Array, "2"], int], Transitions]  # draws rows with replacement
    # Draws stretches with replacement: the steps of one environment in one segment; axes stretch, time.
    draw_stretches: Callable[[Ring, PRNGKeyArray | UInt32[Array, "2"], int], Transitions]
    # (ring, key, number, length): draws windows of consecutive steps of one environment, also across segments; axes
    # window, time. If fewer steps of each environment are held, windows begin at any step and end with weight 0. Not
    # for asynchronous actors, which insert their own environments only.
    draw_windows: Callable[[Ring, PRNGKeyArray | UInt32[Array, "2"], int, int], Transitions]

    def description(self) -> str:
        """Returns a description for the log."""
        return f"replay buffer: the last {self.capacity:,} steps, {_in_mib(self.nbytes)} per actor"

    def require_memory(self, learners: int, memory: float, *, saved: bool) -> None:
        """Checks that the rings fit into memory.

        Args:
          learners: number of learners with a ring: actors of one training, or trainings.
          memory: bytes available for all of them.
          saved: whether checkpoints are written.

        Raises:
          ValueError: the rings do not fit.
        """
        # Three rings per learner: the initial one, one that the caller holds, and the newest. A checkpoint is gathered,
        # serialised and joined with its checksum, of all of which there are copies at the same time.
        rings = 8 if saved else 3
        if rings * learners * self.nbytes > memory:
            raise ValueError(
                f"replay: {self.capacity:,} steps need {rings} x {learners} x {_in_mib(self.nbytes)}, but only "
                f"{_in_mib(memory)} of memory is available; use a smaller replay or fewer actors"
            )


def _in_mib(nbytes: float) -> str:
    return f"{nbytes / 2**20:,.0f} MiB"


def make_replay(
    capacity: int, *, segment_steps: int, segment_length: int, observation_size: int, action_size: int
) -> Replay:
    """Builds a replay buffer.

    An insertion takes time proportional to the steps of the batch, a draw proportional to its rows. A compiled program
    that returns the ring copies it, unless the memory of the previous one is donated to it (see `ReplayInPlace`).

    Args:
      capacity: minimum number of environment steps of all actors; rounded up to whole segments.
      segment_steps: environment steps of all actors in a segment. Whole segments are inserted, or the part of a single
        actor if actors are asynchronous.
      segment_length: steps of each environment in a segment.
      observation_size: size of an observation.
      action_size: size of an action.

    Raises:
      ValueError: the capacity exceeds 32-bit indices.
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
        # Outside of the loop: XLA runs collectives in the same order on all actors, but not those inside of loops if
        # the program comes from the compilation cache, which causes a deadlock.
        all_steps = gather_envs(batch.steps, axis=2)

        def one(index: Int[Array, ""], ring: Ring) -> Ring:
            steps = jax.tree.map(lambda leaf: leaf[index], all_steps)
            transitions = Transitions(
                steps.obs, steps.action, steps.reward, steps.terminated, steps.final_obs, steps.elapsed, ~steps.invalid
            )
            number = steps.reward.size  # those of one actor if actors are asynchronous
            rows = [leaf.reshape(number, -1).astype(jnp.float32) for leaf in transitions]
            # Rounds only if a run is resumed with fewer actors, whose larger parts would cross the end of the ring.
            begin = ring.next_row // number * number
            updated = jax.lax.dynamic_update_slice_in_dim(ring.rows, jnp.concatenate(rows, axis=1), begin, 0)
            end = begin + number
            return Ring(updated, end % capacity, jnp.maximum(ring.filled, end))

        return jax.lax.fori_loop(0, batch.num_segments, one, ring)

    def rows_at(ring: Ring, chosen: Int[Array, "*rows"]) -> Transitions:
        # The barrier stops XLA from gathering the rows again for every use.
        drawn = jax.lax.optimization_barrier(ring.rows[chosen])
        obs, action, reward, terminated, final_obs, elapsed, weight = jnp.split(drawn, ends[:-1], axis=-1)
        return Transitions(obs, action, reward[..., 0], terminated[..., 0], final_obs, elapsed[..., 0], weight[..., 0])

    def draw(ring: Ring, key: PRNGKeyArray | UInt32[Array, "2"], number: int) -> Transitions:
        return rows_at(ring, jax.random.randint(key, (number,), 0, jnp.maximum(ring.filled, 1)))

    def draw_stretches(ring: Ring, key: PRNGKeyArray | UInt32[Array, "2"], number: int) -> Transitions:
        filled = jnp.maximum(ring.filled // segment_length, 1)  # number of stretches
        segment, env = jnp.divmod(jax.random.randint(key, (number,), 0, filled), num_envs)
        begin = segment * segment_steps + env
        return rows_at(ring, begin[:, None] + num_envs * jnp.arange(segment_length))

    def draw_windows(ring: Ring, key: PRNGKeyArray | UInt32[Array, "2"], number: int, length: int) -> Transitions:
        # Steps of one environment are `num_envs` rows apart, in the order of time from the oldest row on.
        oldest = jnp.where(ring.filled == capacity, ring.next_row, 0)
        whole = ring.filled - (length - 1) * num_envs  # number of windows whose steps are all there
        starts = jnp.maximum(jnp.where(whole > 0, whole, ring.filled), 1)
        place = jax.random.randint(key, (number,), 0, starts)[:, None] + num_envs * jnp.arange(length)
        # Without a sum of both, which could exceed 32 bits.
        row = place - (capacity - oldest)
        drawn = rows_at(ring, jnp.where(row < 0, row + capacity, row % capacity))
        return drawn._replace(weight=jnp.where(place < ring.filled, drawn.weight, 0.0))

    return Replay(capacity, 4 * capacity * int(ends[-1]), empty, insert, draw, draw_stretches, draw_windows)


# (ring, batch) -> ring; takes over the memory of the argument.
Insert = Callable[[Ring, Batch], Ring]


Map = Callable[..., jax.stages.Wrapped]


class ReplayInPlace:
    """Updates the field `replay` of learner states, if they have one, in place.

    A copy of the buffer for each batch may take longer than collecting the batch, because the operating system provides
    memory of that size page by page. Therefore the previous ring donates its memory to the next. States that were
    returned by `whole` stay valid: the next batch is then inserted into a copy.
    """

    def __init__(self, insert: Insert | None, learner: PyTree):
        """Starts with a learner state, which stays valid.

        Args:
          insert: compiled function; None if learner states have no buffer.
          learner: initial learner state, on the devices.
        """
        self._insert, self._shared, self._lock = insert, True, threading.Lock()
        self._newest = None if insert is None else learner.replay

    def insert(self, learner: PyTree, batch: Batch) -> PyTree:
        """Inserts a batch into the buffer of the newest learner state; earlier states need `whole` to be read."""
        if self._insert is None:
            return learner
        # In a thread that no interrupt reaches: an interrupt between donation and assignment would lose both rings.
        in_background(self._write, learner.replay, batch).result()
        return learner._replace(replay=self._newest)

    def _write(self, ring: Ring, batch: Batch) -> None:
        assert self._insert is not None and self._newest is not None
        with self._lock:
            rows = copied(self._newest.rows) if self._shared else self._newest.rows
            self._newest, self._shared = self._insert(ring._replace(rows=rows), batch), False

    def whole(self, learner: PyTree) -> PyTree:
        """Returns a learner state with a buffer that stays valid.

        If a later batch was inserted but its update did not complete, it has replaced the oldest steps. They are not
        needed: a resumed run collects the same batch and overwrites them first.
        """
        if self._insert is None:
            return learner
        with self._lock:
            assert self._newest is not None
            self._shared = True
            return learner._replace(replay=learner.replay._replace(rows=self._newest.rows))


def compile_insert(replay: Replay, over_actors: Map, ring: Ring, batch: Batch) -> Insert:
    """Compiles a buffer's `insert`, mapped over actors.

    Args:
      replay: replay buffer.
      over_actors: maps a function over actors; see `Actors.map`.
      ring: example of a ring.
      batch: example of a batch.
    """

    def insert(rows: jax.Array, rest: Ring, batch: Batch) -> Ring:
        return replay.insert(rest._replace(rows=rows), batch)

    def without_rows(ring: Ring) -> Ring:
        return ring._replace(rows=None)  # pyright: ignore[reportArgumentType]

    compiled = over_actors(insert, donate=(0,)).lower(ring.rows, without_rows(ring), batch).compile()
    return lambda ring, batch: compiled(ring.rows, without_rows(ring), batch)


def inserted(replay: Replay | None, learner: PyTree, batch: Batch) -> PyTree:
    """Inserts a batch into the buffer of a learner state, if it has one; for use inside of a mapped function."""
    return learner if replay is None else learner._replace(replay=replay.insert(learner.replay, batch))


def without_replay(learner: PyTree) -> PyTree:
    """Removes the buffer from a learner state, because a program that returns a buffer copies it."""
    return learner._replace(replay=None)
