"""TRPO with a KL penalty instead of a KL bound."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxtrpo.algorithms.actor_critic import actor_critic
from jaxtrpo.algorithms.algorithm import Algorithm, Learner, Spec
from jaxtrpo.algorithms.natural_gradient import CONTROLS_KL, damping_for, make_direction, require_natural_gradient
from jaxtrpo.algorithms.trust_region import Path, finish_step, no_path, require_line_search, step_work
from jaxtrpo.config.checks import require_positive, require_share
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.ops.line_search import Trial, backtracking_line_search

FIRST_PENALTY = 10.0  # initial C if adaptive; a few updates correct it
# C is doubled or halved if the KL is off its target by more than this factor (Schulman et al. 2017, section 4).
TOLERANCE, FACTOR = 1.5, 2.0
PENALTY_RANGE = (1e-4, 1e6)


class Memory(NamedTuple):
    """Memory of previous policy steps."""

    path: Path
    penalty: Float[Array, ""]  # C of the next step, units of the surrogate per nat


def trpo_penalty(
    *,
    target_kl: float = 0.01,
    penalty: float | None = None,
    gae_lambda: float = 0.95,
    fisher_samples: int = 512,
    cg_iterations: int = 15,
    cg_damping: float | None = None,
    line_search_shrink: float = 0.8,
    line_search_steps: int = 10,
) -> Algorithm:
    """TRPO with a KL penalty: maximises the surrogate minus C times the mean KL.

    This is the bound of Schulman et al. (2015, equation 9) with the mean KL in place of the maximum. For a linear
    surrogate and a quadratic KL, the maximum lies at the natural gradient divided by C; the line search backtracks from
    there until the penalised objective improves.

    Args:
      target_kl: target for the mean KL of a step, nats: C is doubled if the KL exceeds 1.5 times the target and halved
        if it is below the target divided by 1.5. Rules may adapt it; it is not used with a fixed C.
      penalty: fixed value of C; None adapts C to the target.
      gae_lambda: lambda of GAE, trading bias (0) against variance (1); 1 gives Monte Carlo returns.
      fisher_samples: number of states, over all actors, on which the Fisher matrix is estimated; taken as whole time
        steps of all environments.
      cg_iterations: maximum number of conjugate-gradient iterations; each computes one Fisher-vector product.
      cg_damping: added to the diagonal of the Fisher matrix, as a fraction of the curvature along the gradient. None
        for 0.03, or 0.005 for recurrent policies, or 0.001 with images.
      line_search_shrink: factor between successive trials of the line search.
      line_search_steps: maximum number of trials; if all of them fail, the policy is left unchanged.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    spec_string = spec_string_of(trpo_penalty, locals())
    require_positive(target_kl=target_kl)
    if penalty is not None:
        require_positive(penalty=penalty)
    require_share(gae_lambda=gae_lambda)
    require_natural_gradient(fisher_samples, cg_iterations, cg_damping)
    require_line_search(line_search_shrink, line_search_steps)

    def make(spec: Spec) -> Learner:
        damping = damping_for(cg_damping, spec.policy, spec.observations)
        direction = make_direction(spec.policy, spec.surrogate, fisher_samples, cg_iterations, damping)

        def step(params, memory, action, found, hyperparameters, key):
            natural = direction(params, action, found, key)
            c = memory.penalty if penalty is None else hyperparameters["penalty"]

            def penalised(candidate: Array) -> Trial:
                trial = natural.evaluate(candidate)
                return trial._replace(objective=trial.objective - c * trial.kl)

            new_params, search = backtracking_line_search(
                penalised,
                natural.params,
                natural.direction / c,
                max_kl=jnp.inf,
                start_objective=natural.objective,
                shrink=line_search_shrink,
                max_trials=line_search_steps,
            )
            search = search._replace(improvement=search.improvement + c * search.kl)  # of the surrogate alone
            params, path, info = finish_step(natural, params, memory.path, new_params, search)
            now = c
            if penalty is None:  # a failed step says nothing about C if the gradient was zero
                now = jnp.where(info.gradient_norm > 0, moved(c, info.kl, hyperparameters["target_kl"]), c)
            return params, Memory(path, now), {**info._asdict(), **({"penalty": c} if penalty is None else {})}

        def no_memory(params) -> Memory:
            return Memory(no_path(params), jnp.float32(FIRST_PENALTY if penalty is None else penalty))

        work = step_work(spec.policy, fisher_samples, cg_iterations)
        return actor_critic(spec, step=step, no_memory=no_memory, work=work, gae_lambda=gae_lambda)

    changing = {"target_kl": target_kl} if penalty is None else {"penalty": penalty}
    starts = {**changing, "steps_per_update": 1024}
    return Algorithm(spec_string, starts, make, uses_surrogate=True, refuses_shared=CONTROLS_KL)


def moved(penalty: Float[Array, ""], kl: Float[Array, ""], target_kl: Float[Array, ""]) -> Float[Array, ""]:
    """Returns C for the next update, given the KL of this one; a KL of 0 means no step was accepted: C is too small."""
    too_far = (kl > TOLERANCE * target_kl) | (kl == 0)
    too_near = ~too_far & (kl < target_kl / TOLERANCE)
    factor = jnp.where(too_far, FACTOR, jnp.where(too_near, 1 / FACTOR, 1.0))
    return jnp.clip(penalty * factor, *PENALTY_RANGE)
