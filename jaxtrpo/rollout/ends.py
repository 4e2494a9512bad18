"""Observations after truncated steps, which are stored only where episodes end if there are images."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxtrpo.rollout.types import Ends, Steps


def slots_for(segment_length: int, episode_length: int) -> int:
    """Returns how often the time limit may truncate the episodes of one environment within a segment.

    After an episode that did not reach its limit, one of full length may be followed by a short one (see `staggering`),
    so that two truncations may follow each other directly.
    """
    full = -(-segment_length // episode_length)
    short = -(-segment_length // (episode_length + 2))
    return min(full + short, segment_length)


def ends_of(steps: Steps, slots: int) -> tuple[Steps, tuple[PyTree, Int[Array, "slot env"]]]:
    """Returns the steps of a segment [time, env] without their final observations, and those that are needed.

    Where an environment truncates more episodes than there are slots, as it may by itself, the observations after
    further ones are left out (see `final_values`).

    Args:
      steps: steps of one segment, with the observation after each.
      slots: number of truncated steps of each environment.

    Returns:
      The steps; and the fields of `Ends` for the segment, observations and steps.
    """
    length, num_envs = steps.reward.shape
    cut = _cut(steps)
    number = jnp.cumsum(cut, axis=0)  # of truncated steps so far
    time = jnp.arange(length)[:, None]
    step = jnp.stack([jnp.min(jnp.where(cut & (number == k + 1), time, length), axis=0) for k in range(slots)])
    row = jnp.minimum(step, length - 1), jnp.arange(num_envs)
    obs = jax.tree.map(lambda leaf: leaf[row], steps.final_obs)
    return steps._replace(final_obs=()), (obs, step)


def final_values(
    steps: Steps,
    values: Float[Array, "time env"],
    ends: Ends,
    is_last: Bool[Array, ""],
    value: Callable[[PyTree, Int[Array, "slot env"]], Float[Array, "slot env"]],
) -> Float[Array, "time env"]:
    """Computes the values of the observations after the steps of a segment, where they are needed; elsewhere 0.

    Where the observation after a truncated step was left out, the one before the step takes its place.

    Args:
      steps: steps of the segment.
      values: of the observations before the steps.
      ends: those of the segment; `after` is that of the batch.
      is_last: whether the segment is the last of the batch.
      value: (observations, after which step of the segment) -> values.
    """
    length, num_envs = steps.reward.shape
    found = jnp.zeros_like(steps.reward)
    at_ends = value(ends.obs, jnp.minimum(ends.step, length - 1))
    found = found.at[ends.step, jnp.arange(num_envs)].set(at_ends, mode="drop")
    cut = _cut(steps)
    found = jnp.where(cut & (jnp.cumsum(cut, axis=0) > len(ends.step)), values, found)
    after = value(jax.tree.map(lambda leaf: leaf[None], ends.after), jnp.full((1, num_envs), length - 1))
    follows = is_last & ~steps.truncated[-1]
    return found.at[-1].set(jnp.where(follows, after[0], found[-1]))


def _cut(steps: Steps) -> Bool[Array, "time env"]:
    """Returns which steps were truncated, and can be learned from."""
    return steps.truncated & ~steps.invalid
