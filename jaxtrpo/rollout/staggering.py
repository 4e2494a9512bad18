"""Staggered time limits, so that environments do not start their episodes in step.

Environments usually learn to survive until the time limit at the same time, after which all of their episodes would
start together. Most batches would then contain no initial states, so that the KL bound, a mean over the states of the
batch, would not protect the policy's behaviour there, and the policy would forget it. Therefore, after the first
episode that survives, the next one ends at the environment's own share of the time limit; the following ones have the
full limit again, and their starts are evenly spread.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxtrpo.envs.base import NO_TIME_LIMIT


class TimeLimits(NamedTuple):
    """Time limits of an actor's environments."""

    limit: Int[Array, " env"]  # limit of the current episode, steps
    share: Int[Array, " env"]  # short limit of this environment, steps; differs between environments
    spread: Bool[Array, " env"]  # the short episode has started, and no episode has failed since


def first_time_limits(num_envs: int, episode_length: int) -> TimeLimits:
    """Returns the limits at the start of a run: (i + 1) / num_envs of the full time limit for environment i.

    Without a time limit no episode is shortened.
    """
    if episode_length >= NO_TIME_LIMIT:
        return whole_time_limits(num_envs, episode_length)
    share = np.maximum(np.arange(1, num_envs + 1) * episode_length // num_envs, 1)
    share = jnp.asarray(share, jnp.int32)
    return TimeLimits(limit=share, share=share, spread=jnp.ones(num_envs, bool))


def whole_time_limits(num_envs: int, episode_length: int) -> TimeLimits:
    """Returns limits for environments that are meant to start together: every episode has the full limit."""
    limit = jnp.full(num_envs, episode_length, jnp.int32)
    return TimeLimits(limit=limit, share=limit, spread=jnp.ones(num_envs, bool))


def next_time_limits(
    limits: TimeLimits, survived: Bool[Array, " env"], failed: Bool[Array, " env"], episode_length: int
) -> TimeLimits:
    """Returns the limits after a step.

    The limit of an episode depends only on earlier episodes, so the returns of episodes with the full limit are an
    unbiased sample. Among those with a short limit, only failures would be complete.

    Args:
      limits: limits before the step.
      survived: whether the episode reached its limit with this step.
      failed: whether it ended in any other way.
      episode_length: full time limit, steps.
    """
    short = survived & ~limits.spread
    return TimeLimits(
        limit=jnp.where(short, limits.share, jnp.where(survived | failed, episode_length, limits.limit)),
        share=limits.share,
        spread=(limits.spread | survived) & ~failed,
    )
