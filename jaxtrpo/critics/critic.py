"""What a critic looks like."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree


class Targets(NamedTuple):
    """What a critic is fitted to: a batch, or one actor's part of it."""

    obs: Float[Array, "segment time env obs"]  # normalised
    elapsed: Int[Array, "segment time env"]  # steps since the episode began
    value: Float[Array, "segment time env"]  # to be predicted, in units of reward
    weight: Float[Array, "segment time env"]  # 1 for a step that counts, 0 for one that does not
    num_segments: Int[Array, ""]  # how many segments hold data


class Critic(NamedTuple):
    """Predicts discounted returns. Pure functions; what is learned is in the state."""

    init: Callable[[PRNGKeyArray], PyTree]
    value: Callable[[PyTree, Float[Array, "... obs"], Int[Array, "..."]], Float[Array, "..."]]  # (state, obs, elapsed)
    fit: Callable[[PyTree, Targets, PRNGKeyArray], PyTree]  # on every actor with its part, or on one with all
    repeated_flops: Callable[[PyTree, int], float]  # (state, samples): of a fit, as far as every actor does the same
