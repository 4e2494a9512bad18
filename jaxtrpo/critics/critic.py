"""What a critic looks like."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxtrpo.ops.moments import Moments
from jaxtrpo.parallel.collectives import Work


class Targets(NamedTuple):
    """What a critic is fitted to: a batch, or one actor's part of it."""

    obs: Float[Array, "segment time env obs"]  # normalised
    elapsed: Int[Array, "segment time env"]  # steps since the episode began
    value: Float[Array, "segment time env"]  # to be predicted, in units of reward
    weight: Float[Array, "segment time env"]  # 1 for a step that counts, 0 for one that does not
    num_segments: Int[Array, ""]  # how many segments hold data


class Gradient(NamedTuple):
    """What some samples say about a critic's parameters, not yet applied."""

    gradient: PyTree  # of the loss with respect to the parameters, with these targets among the moments of all
    moments: Moments  # of the targets, in units of reward


class Critic(NamedTuple):
    """Predicts discounted returns. Pure functions; what is learned is in the state."""

    init: Callable[[PRNGKeyArray], PyTree]
    value: Callable[[PyTree, Float[Array, "... obs"], Int[Array, "..."]], Float[Array, "..."]]  # (state, obs, elapsed)
    # (state, targets, key, rate) -> state; on every actor with its part, or on one with all. `rate` is a factor of the
    # critic's learning rate: the algorithm's as a rule has moved it, over that of the start; 1 where it has none.
    fit: Callable[[PyTree, Targets, PRNGKeyArray, Float[Array, ""]], PyTree]
    work: Callable[[PyTree, int], Work]  # (state, samples) -> of a fit
    # (state, targets) -> one gradient for the samples of all actors, and (state, gradient, rate) -> state, with the
    # rate as in `fit`; None without any
    gradient: Callable[[PyTree, Targets], Gradient] | None = None
    apply: Callable[[PyTree, Gradient, Float[Array, ""]], PyTree] | None = None


class CriticMaker(NamedTuple):
    """A critic before it is known what it will see."""

    words: str  # how it is written in the shell
    make: Callable[[int], Critic]  # size of an observation -> critic
