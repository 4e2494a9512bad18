"""The critic interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxtrpo.config.kinds import kinds_differ
from jaxtrpo.envs.observation_space import Observed
from jaxtrpo.ops.moments import Moments
from jaxtrpo.ops.tree import if_finite
from jaxtrpo.parallel.collectives import Work
from jaxtrpo.policies.recurrence import Recurrence


class Targets(NamedTuple):
    """Data that a critic is fitted to: a batch, or one actor's part of it."""

    # [segment, time, env, obs], normalised; `Sequences` for a network with memory, whose segments are stretches.
    obs: Any
    elapsed: Int[Array, "segment time env"]  # steps since the episode began
    value: Float[Array, "segment time env"]  # return to predict, in units of reward
    weight: Float[Array, "segment time env"]  # 1 for a step that counts, else 0
    num_segments: Int[Array, ""]  # number of leading segments that hold data


class Gradient(NamedTuple):
    """A gradient of a critic's loss that has not been applied yet."""

    gradient: PyTree  # with respect to the parameters; targets are scaled by return moments that include them
    moments: Moments  # of the targets, in units of reward


class Critic(NamedTuple):
    """Pure functions of a critic that predicts discounted returns; everything learned is in the state."""

    init: Callable[[PRNGKeyArray], PyTree]  # key -> initial state
    value: Callable[[PyTree, Any, Int[Array, "..."]], Float[Array, "..."]]  # (state, normalised obs, elapsed)
    # (state, targets, key, rate) -> state; runs on every actor with its part of the batch, or on one with all of it.
    # `rate` scales the critic's learning rate: the algorithm's current learning rate over its initial one; 1 if it has
    # none.
    fit: Callable[[PyTree, Targets, PRNGKeyArray, Float[Array, ""]], PyTree]
    work: Callable[[PyTree, int], Work]  # (state, number of samples) -> cost of a fit
    # (state, targets) -> gradient for the samples of all actors; None if the critic cannot take single gradient steps
    gradient: Callable[[PyTree, Targets], Gradient] | None = None
    # (state, gradient, rate) -> state, with the rate as in `fit`; None if the critic cannot take single gradient steps
    apply: Callable[[PyTree, Gradient, Float[Array, ""]], PyTree] | None = None
    # None: the critic has no memory. Otherwise `value` is not used, and outputs of the recurrence are values.
    recurrence: Recurrence | None = None


def is_network(critic: Critic) -> bool:
    """Returns whether a critic has parameters."""
    return bool(jax.tree.leaves(jax.eval_shape(critic.init, jax.random.PRNGKey(0))))


def sound_fit(fitted: PyTree, before: PyTree) -> PyTree:
    """Returns the state after a fit or, if a number in it is not finite, the state before.

    Raises:
      ValueError: the states differ in structure, shapes or dtypes.
    """
    if difference := kinds_differ(before, fitted):
        wanted, found = difference
        raise ValueError(f"critic: its state must keep its shapes and types in a fit: {wanted}, not {found}")
    return if_finite(fitted, before)


class CriticMaker(NamedTuple):
    """Settings of a critic whose observations are not known yet."""

    spec_string: str  # such as "mlp(hidden=(128, 128))"
    # Size of flat observations, or space of those with images -> critic
    make: Callable[[Observed], Critic]
