"""Backtracking line search within a trust region."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxtrpo.ops.tree import all_finite


class Trial(NamedTuple):
    """Objective and KL of a candidate."""

    objective: Float[Array, ""]  # to be maximised
    kl: Float[Array, ""]  # KL divergence from the start, nats


class LineSearchInfo(NamedTuple):
    """Diagnostics of one line search. If no point was accepted, scale, improvement and KL are zero."""

    accepted: Bool[Array, ""]
    trials: Int[Array, ""]  # number of points tried
    scale: Float[Array, ""]  # fraction of the full step taken
    improvement: Float[Array, ""]  # of the objective
    kl: Float[Array, ""]  # at the returned point, nats


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
    """Tries params + shrink^k full_step for k = 0, 1, ... until the objective improves and the KL is within the bound.

    Args:
      evaluate: params -> objective and KL.
      params: the start, where the KL is zero.
      full_step: first step to try.
      max_kl: largest KL allowed, nats.
      start_objective: objective at `params`.
      shrink: factor between successive trials.
      max_trials: number of trials before giving up.

    Returns:
      The first point that is finite, has a finite objective > start_objective and kl <= max_kl, or else `params`; and
      diagnostics.
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
