"""Time limits that keep environments out of step.

Environments that learn to survive do so at the same time, and from then on all their episodes would begin together:
between two beginnings come whole batches without any, the KL bound, a mean over the states of the batch, does not
protect what the policy does there, and it is forgotten. So the first episode after those that failed ends at the
environment's own share of the time limit; the following ones are whole again, and the beginnings spread evenly.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int


class TimeLimits(NamedTuple):
    """Of one actor's environments."""

    limit: Int[Array, " env"]  # of the running episode, steps
    share: Int[Array, " env"]  # the short limit of this environment, steps; differs between environments
    spread: Bool[Array, " env"]  # the short episode is running or over, and no episode has failed since


def first_time_limits(num_envs: int, episode_length: int) -> TimeLimits:
    """At the beginning of a run: environment i has (i + 1) / num_envs of the whole time limit."""
    share = np.maximum(np.arange(1, num_envs + 1) * episode_length // num_envs, 1)
    share = jnp.asarray(share, jnp.int32)
    return TimeLimits(limit=share, share=share, spread=jnp.ones(num_envs, bool))


def whole_time_limits(num_envs: int, episode_length: int) -> TimeLimits:
    """Of environments that begin together on purpose: every episode has the whole limit."""
    limit = jnp.full(num_envs, episode_length, jnp.int32)
    return TimeLimits(limit=limit, share=limit, spread=jnp.ones(num_envs, bool))


def next_time_limits(
    limits: TimeLimits, survived: Bool[Array, " env"], failed: Bool[Array, " env"], episode_length: int
) -> TimeLimits:
    """After a step.

    What limit an episode gets depends on the ones before it only. The returns of episodes with the whole limit are
    therefore a fair sample; of those with a shorter one, only failures would be known.

    Args:
      limits: before the step.
      survived: the episode reached its limit with this step.
      failed: it ended in any other way.
      episode_length: the whole time limit, steps.
    """
    short = survived & ~limits.spread
    return TimeLimits(
        limit=jnp.where(short, limits.share, jnp.where(survived | failed, episode_length, limits.limit)),
        share=limits.share,
        spread=(limits.spread | survived) & ~failed,
    )
