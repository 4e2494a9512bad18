"""The last finished episodes, kept as data."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxtrpo.actors import gather_envs
from jaxtrpo.types import Batch, Episodes

REMEMBERED = 100


class EpisodeInfo(NamedTuple):
    """What one batch says about episodes; all actors together."""

    episodes: Int[Array, ""]  # finished in the batch
    mean_return: Float[Array, ""]  # of those; NaN if there are none
    return_100: Float[Array, ""]  # mean of the last 100 finished, or of all if they are fewer; NaN if there are none
    invalid_steps: Int[Array, ""]  # that are no experience: a simulation broke, or an episode only began


def no_episodes() -> Episodes:
    """At the beginning."""
    return Episodes(jnp.full(REMEMBERED, jnp.nan))


def remember(episodes: Episodes, batch: Batch) -> tuple[Episodes, EpisodeInfo]:
    """Adds the episodes that finished in a batch, in order of time; to be mapped over actors."""
    filled = jnp.arange(batch.steps.invalid.shape[0]) < batch.num_segments
    here = jnp.where(filled[:, None, None], batch.steps.episode_return, jnp.nan)
    broken = jnp.sum(batch.steps.invalid & filled[:, None, None], axis=(0, 1), keepdims=True)
    new, invalid = (leaf.reshape(-1) for leaf in gather_envs((here, broken), axis=2))
    known = jnp.concatenate([episodes.returns, new])
    # Positions of the last that are numbers, in order; -1 where there are not enough.
    last = jnp.sort(jnp.where(jnp.isnan(known), -1, jnp.arange(known.size)))[-REMEMBERED:]
    returns = jnp.where(last >= 0, known[last], jnp.nan)
    info = EpisodeInfo(
        episodes=jnp.sum(~jnp.isnan(new)),
        mean_return=jnp.nanmean(new),
        return_100=jnp.nanmean(returns),
        invalid_steps=jnp.sum(invalid),
    )
    return Episodes(returns), info
