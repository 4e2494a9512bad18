"""TRPO with a penalty in place of the bound: the objective minus C times the KL."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxtrpo.algorithms.actor_critic import actor_critic
from jaxtrpo.algorithms.algorithm import Algorithm, Learner, Spec
from jaxtrpo.algorithms.natural_gradient import make_direction, require_natural_gradient
from jaxtrpo.algorithms.trust_region import Path, finish_step, no_path, require_line_search, step_work
from jaxtrpo.config.checks import require_positive, require_share
from jaxtrpo.config.specs import call_in_words
from jaxtrpo.ops.line_search import Trial, backtracking_line_search

FIRST_PENALTY = 10.0  # where C starts when it is moved; it is right after a few updates
# C is doubled or halved where the KL was this far from its target (Schulman et al. 2017, section 4).
TOLERANCE, FACTOR = 1.5, 2.0
PENALTY_RANGE = (1e-4, 1e6)


class Memory(NamedTuple):
    """What a step knows of those before."""

    path: Path
    penalty: Float[Array, ""]  # C of the next step, units of the surrogate over nats


def trpo_penalty(
    *,
    target_kl: float = 0.01,
    penalty: float | None = None,
    gae_lambda: float = 0.95,
    fisher_samples: int = 512,
    cg_iterations: int = 15,
    cg_damping: float = 0.03,
    line_search_shrink: float = 0.8,
    line_search_steps: int = 10,
) -> Algorithm:
    """TRPO with a penalty: maximises the surrogate minus C times the KL (Schulman et al. 2015, equation 12).

    Where the surrogate is linear and the KL quadratic, its maximum is the natural gradient over C; the line search
    goes back from there until the penalised objective has risen.

    Args:
      target_kl: C is doubled after a step whose KL exceeds 1.5 times this, and halved after one whose KL is below it
        over 1.5, nats. It is what rules may change; with a fixed C it is not used.
      penalty: C, fixed; moved towards the target if None.
      gae_lambda: bias (0) against variance (1) of the advantages; 1 gives Monte Carlo returns.
      fisher_samples: states that the Fisher matrix is estimated on, of all actors; whole moments of all environments.
      cg_iterations: products with the Fisher matrix in one update, at most.
      cg_damping: added to the diagonal of the Fisher matrix, as a part of the curvature along the gradient.
      line_search_shrink: factor between trials of the line search.
      line_search_steps: trials of the line search before the old policy stays.

    Raises:
      ValueError: a setting is out of bounds; one sentence that names it.
    """
    words = call_in_words(trpo_penalty, locals())
    require_positive(target_kl=target_kl)
    if penalty is not None:
        require_positive(penalty=penalty)
    require_share(gae_lambda=gae_lambda)
    require_natural_gradient(fisher_samples, cg_iterations, cg_damping)
    require_line_search(line_search_shrink, line_search_steps)

    def make(spec: Spec) -> Learner:
        direction = make_direction(spec.policy, spec.surrogate, fisher_samples, cg_iterations, cg_damping)

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
            if penalty is None:  # without a gradient no step was tried, and C is not to blame
                now = jnp.where(info.gradient_norm > 0, moved(c, info.kl, hyperparameters["target_kl"]), c)
            return params, Memory(path, now), {**info._asdict(), **({"penalty": c} if penalty is None else {})}

        def no_memory(params) -> Memory:
            return Memory(no_path(params), jnp.float32(FIRST_PENALTY if penalty is None else penalty))

        work = step_work(fisher_samples, cg_iterations)
        return actor_critic(spec, step=step, no_memory=no_memory, work=work, gae_lambda=gae_lambda)

    changing = {"target_kl": target_kl} if penalty is None else {"penalty": penalty}
    return Algorithm(words, {**changing, "steps_per_update": 1024}, make)


def moved(penalty: Float[Array, ""], kl: Float[Array, ""], target_kl: Float[Array, ""]) -> Float[Array, ""]:
    """C of the next update, from the KL that this one's led to. A step that was not made says that C is too small."""
    too_far = (kl > TOLERANCE * target_kl) | (kl == 0)
    too_near = ~too_far & (kl < target_kl / TOLERANCE)
    factor = jnp.where(too_far, FACTOR, jnp.where(too_near, 1 / FACTOR, 1.0))
    return jnp.clip(penalty * factor, *PENALTY_RANGE)
