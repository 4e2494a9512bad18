"""Backtracking line search under a trust region."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxtrpo.ops.tree import all_finite


class Trial(NamedTuple):
    """How good a point is."""

    objective: Float[Array, ""]  # to be maximised
    kl: Float[Array, ""]  # distance from the start, nats


class LineSearchInfo(NamedTuple):
    """What one line search did. If it was not accepted, everything about the step is zero."""

    accepted: Bool[Array, ""]
    trials: Int[Array, ""]  # points tried
    scale: Float[Array, ""]  # fraction of the full step that was taken
    improvement: Float[Array, ""]  # of the objective
    kl: Float[Array, ""]  # at the point returned, nats


def backtracking_line_search(
    evaluate: Callable[[PyTree], Trial],
    params: PyTree,
    full_step: PyTree,
    *,
    max_kl: Float[Array, ""] | float,
    start_objective: Float[Array, ""],
    shrink: float = 0.8,
    max_trials: int = 10,
) -> tuple[PyTree, LineSearchInfo]:
    """Tries params + shrink^k full_step for k = 0, 1, ... until the objective rises and the KL is within bounds.

    Args:
      evaluate: params -> objective and KL.
      params: the start; its KL is zero.
      full_step: first step to try.
      max_kl: largest KL allowed, nats.
      start_objective: objective at `params`.
      shrink: factor between trials.
      max_trials: give up after so many.

    Returns:
      The first point with objective > start_objective and kl <= max_kl, all of it finite; `params` itself if there is
      none. And what was done.
    """

    def unfinished(state: tuple[PyTree, LineSearchInfo]) -> Bool[Array, ""]:
        _, info = state
        return ~info.accepted & (info.trials < max_trials)

    def attempt(state: tuple[PyTree, LineSearchInfo]) -> tuple[PyTree, LineSearchInfo]:
        _, info = state
        scale = jnp.float32(shrink) ** info.trials
        candidate = optax.tree.add_scale(params, scale, full_step)
        trial = evaluate(candidate)
        improvement = trial.objective - start_objective
        # Comparisons with NaN are false, so a point that is not finite is never accepted.
        accepted = (improvement > 0) & (trial.kl <= max_kl) & jnp.isfinite(improvement) & all_finite(candidate)
        zero = jnp.zeros(())
        return optax.tree.where(accepted, candidate, params), LineSearchInfo(
            accepted=accepted,
            trials=info.trials + 1,
            scale=jnp.where(accepted, scale, zero),
            improvement=jnp.where(accepted, improvement, zero),
            kl=jnp.where(accepted, trial.kl, zero),
        )

    zero = jnp.zeros(())
    nothing = LineSearchInfo(jnp.bool_(False), jnp.int32(0), zero, zero, zero)
    return jax.lax.while_loop(unfinished, attempt, (params, nothing))
