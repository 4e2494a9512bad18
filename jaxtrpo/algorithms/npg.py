"""Natural policy gradient (Kakade 2001) with a step length set by a KL bound."""

from __future__ import annotations

import jax.numpy as jnp

from jaxtrpo.algorithms.actor_critic import actor_critic
from jaxtrpo.algorithms.algorithm import Algorithm, Learner, Spec
from jaxtrpo.algorithms.natural_gradient import CONTROLS_KL, damping_for, make_direction, require_natural_gradient
from jaxtrpo.algorithms.trust_region import finish_step, no_path, step_to_bound, step_work
from jaxtrpo.config.checks import require_positive, require_share
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.ops.line_search import LineSearchInfo
from jaxtrpo.ops.tree import all_finite


def npg(
    *,
    max_kl: float = 0.01,
    gae_lambda: float = 0.95,
    fisher_samples: int = 512,
    cg_iterations: int = 15,
    cg_damping: float | None = None,
) -> Algorithm:
    """Natural policy gradient (NPG): the step of TRPO without its line search.

    The step length is the largest allowed by the bound if the KL were quadratic (Rajeswaran et al. 2017, equation 5),
    so the true KL may exceed the bound slightly. A step that is not finite is discarded.

    Args:
      max_kl: initial step size: mean KL divergence between the policies before and after an update, nats.
      gae_lambda: lambda of GAE, trading bias (0) against variance (1); 1 gives Monte Carlo returns.
      fisher_samples: number of states, over all actors, on which the Fisher matrix is estimated; taken as whole time
        steps of all environments.
      cg_iterations: maximum number of conjugate-gradient iterations; each computes one Fisher-vector product.
      cg_damping: added to the diagonal of the Fisher matrix, as a fraction of the curvature along the gradient. None
        for 0.03, or 0.005 for recurrent policies, or 0.001 with images.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    spec_string = spec_string_of(npg, locals())
    require_positive(max_kl=max_kl)
    require_share(gae_lambda=gae_lambda)
    require_natural_gradient(fisher_samples, cg_iterations, cg_damping)

    def make(spec: Spec) -> Learner:
        damping = damping_for(cg_damping, spec.policy, spec.observations)
        direction = make_direction(spec.policy, spec.surrogate, fisher_samples, cg_iterations, damping)

        def step(params, path, action, found, hyperparameters, key):
            natural = direction(params, action, found, key)
            candidate = natural.params + step_to_bound(natural, hyperparameters["max_kl"])
            trial = natural.evaluate(candidate)
            accepted = all_finite(candidate) & jnp.isfinite(trial.kl) & jnp.isfinite(trial.objective)
            made = LineSearchInfo(
                accepted=accepted,
                trials=jnp.int32(1),
                scale=jnp.where(accepted, 1.0, 0.0),
                improvement=jnp.where(accepted, trial.objective - natural.objective, 0.0),
                kl=jnp.where(accepted, trial.kl, 0.0),
            )
            new_params = jnp.where(accepted, candidate, natural.params)
            params, path, info = finish_step(natural, params, path, new_params, made)
            measured = info._asdict()
            del measured["line_search_steps"]
            return params, path, measured

        work = step_work(spec.policy, fisher_samples, cg_iterations)
        return actor_critic(spec, step=step, no_memory=no_path, work=work, gae_lambda=gae_lambda)

    starts = {"max_kl": max_kl, "steps_per_update": 1024}
    return Algorithm(spec_string, starts, make, adapt="trust", uses_surrogate=True, refuses_shared=CONTROLS_KL)
