"""Replay buffer: the last steps of all environments, in a ring that compiled code fills and draws from."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from jaxtrpo.actors import gather_envs
from jaxtrpo.machine import memory
from jaxtrpo.ops.keys import numbered_key
from jaxtrpo.types import Batch

Carry = TypeVar("Carry")
# Rows of several minibatches are fetched at once, which takes half as long as fetching them one after the other.
ROWS_AT_ONCE = 1_024


class Transitions(NamedTuple):
    """Steps, each by itself; any leading axes."""

    obs: Float[Array, "*rows obs"]  # as the simulator gave it
    action: Float[Array, "*rows action"]  # as sampled, in policy units, not clipped
    reward: Float[Array, "*rows"]
    terminated: Float[Array, "*rows"]  # 1 where nothing follows, else 0
    final_obs: Float[Array, "*rows obs"]  # what the step led to, before any reset
    elapsed: Float[Array, "*rows"]  # steps taken in the episode before this one
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

    def in_words(self) -> str:
        """What a person should know of it."""
        return f"replay buffer: the last {self.capacity:,} steps, {_in_mib(self.nbytes)} an actor"

    def require_memory(self, num_actors: int) -> None:
        """Refuses a ring that does not fit into the machine's memory.

        Raises:
          ValueError: one sentence that says how large it is.
        """
        # Each actor has two while it learns: that of before, with which a run could still be saved, and the new one.
        if 2 * num_actors * self.nbytes > memory():
            raise ValueError(
                f"replay: {self.capacity:,} steps take {_in_mib(self.nbytes)}, twice for each of {num_actors} actors "
                f"while it learns, and this machine has {_in_mib(memory())}"
            )


def _in_mib(nbytes: float) -> str:
    return f"{nbytes / 2**20:,.0f} MiB"


def make_replay(capacity: int, *, segment_steps: int, observation_size: int, action_size: int) -> Replay:
    """A ring of the last steps.

    A batch takes time in proportion to its steps, a draw in proportion to its rows; neither depends on the capacity.

    Args:
      capacity: environment steps of all actors that are kept at least; whole segments are.
      segment_steps: environment steps of all actors in a segment; segments come whole, or one actor's part alone.
      observation_size: numbers in an observation.
      action_size: numbers in an action.
    """
    capacity = -(-capacity // segment_steps) * segment_steps
    sizes = (observation_size, action_size, 1, 1, observation_size, 1, 1)  # of the fields
    ends = np.cumsum(sizes)

    def empty() -> Ring:
        return Ring(jnp.zeros((capacity, ends[-1])), jnp.int32(0), jnp.int32(0))

    def insert(ring: Ring, batch: Batch) -> Ring:
        def one(index: Int[Array, ""], ring: Ring) -> Ring:
            steps = gather_envs(jax.tree.map(lambda leaf: leaf[index], batch.steps), axis=1)
            found = Transitions(
                steps.obs, steps.action, steps.reward, steps.terminated, steps.final_obs, steps.elapsed, ~steps.invalid
            )
            number = steps.reward.size  # of one actor's steps where actors do not wait for each other
            rows = [leaf.reshape(number, -1).astype(jnp.float32) for leaf in found]
            held = jax.lax.dynamic_update_slice_in_dim(ring.rows, jnp.concatenate(rows, axis=1), ring.next_row, 0)
            return Ring(held, (ring.next_row + number) % capacity, jnp.minimum(ring.filled + number, capacity))

        return jax.lax.fori_loop(0, batch.num_segments, one, ring)

    def draw(ring: Ring, key: PRNGKeyArray | UInt32[Array, "2"], number: int) -> Transitions:
        chosen = jax.random.randint(key, (number,), 0, jnp.maximum(ring.filled, 1))
        # The barrier keeps XLA from fetching every row again where it is used.
        drawn = jax.lax.optimization_barrier(ring.rows[chosen])
        obs, action, reward, terminated, final_obs, elapsed, weight = jnp.split(drawn, ends[:-1], axis=1)
        return Transitions(obs, action, reward[:, 0], terminated[:, 0], final_obs, elapsed[:, 0], weight[:, 0])

    return Replay(capacity, 4 * capacity * int(ends[-1]), empty, insert, draw)


def over_minibatches(
    step: Callable[[Carry, Transitions], Carry],
    carry: Carry,
    replay: Replay,
    ring: Ring,
    key: PRNGKeyArray | UInt32[Array, "2"],
    *,
    number: Int[Array, ""],
    size: int,
) -> Carry:
    """carry = step(carry, minibatch) for so many minibatches, each drawn anew.

    Args:
      step: (carry, rows of one minibatch) -> carry.
      carry: where it starts.
      replay: whose rows.
      ring: what it holds; at least one segment.
      key: of the draws; the ones that lie behind it are used too (see `numbered_key`).
      number: minibatches; traced.
      size: rows of each.
    """
    at_once = max(ROWS_AT_ONCE // size, 1)  # minibatches

    def some(index: Int[Array, ""], carry: Carry) -> Carry:
        drawn = replay.draw(ring, numbered_key(key, index), at_once * size)

        def one(within: Int[Array, ""], carry: Carry) -> Carry:
            return step(
                carry, jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, within * size, size), drawn)
            )

        return jax.lax.fori_loop(0, jnp.minimum(at_once, number - index * at_once), one, carry)

    return jax.lax.fori_loop(0, -(-number // at_once), some, carry)
