"""The last finished episodes, kept as data."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxtrpo.actors import gather_envs, sum_over_actors
from jaxtrpo.types import Batch, Episodes

REMEMBERED = 100


class EpisodeInfo(NamedTuple):
    """What one batch says about episodes; all actors together."""

    episodes: Int[Array, ""]  # finished in the batch
    mean_return: Float[Array, ""]  # of those; NaN if there are none
    return_100: Float[Array, ""]  # mean of the last 100 finished, or of all if they are fewer; NaN if there are none
    invalid_steps: Int[Array, ""]  # steps in which a simulation broke


def no_episodes() -> Episodes:
    """At the beginning."""
    return Episodes(jnp.zeros(REMEMBERED), jnp.int32(0))


def remember(episodes: Episodes, batch: Batch) -> tuple[Episodes, EpisodeInfo]:
    """Adds the episodes that finished in a batch, in order of time; to be mapped over actors."""
    filled = jnp.arange(batch.steps.invalid.shape[0]) < batch.num_segments
    here = jnp.where(filled[:, None, None], batch.steps.episode_return, jnp.nan)
    returns = gather_envs(here, axis=2).reshape(-1)
    finished = ~jnp.isnan(returns)
    number = jnp.sum(finished)
    rank = jnp.cumsum(finished) - 1
    kept = finished & (rank >= number - REMEMBERED)
    slot = jnp.where(kept, (episodes.count + rank) % REMEMBERED, REMEMBERED)
    ring = episodes.returns.at[slot].set(returns, mode="drop")
    count = episodes.count + number
    in_ring = jnp.arange(REMEMBERED) < count
    info = EpisodeInfo(
        episodes=number,
        mean_return=jnp.sum(jnp.where(finished, returns, 0.0)) / number,
        return_100=jnp.sum(jnp.where(in_ring, ring, 0.0)) / jnp.minimum(count, REMEMBERED),
        invalid_steps=sum_over_actors(jnp.sum(batch.steps.invalid & filled[:, None, None])),
    )
    return Episodes(ring, count), info
