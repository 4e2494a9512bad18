"""Trust region policy optimisation, TRPO (Schulman et al. 2015)."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import PyTree

from jaxtrpo.algorithms.actor_critic import actor_critic
from jaxtrpo.algorithms.advantages import compare_with_usual
from jaxtrpo.algorithms.algorithm import Algorithm, Learner, Spec
from jaxtrpo.algorithms.natural_gradient import CONTROLS_KL, damping_for, make_direction, require_natural_gradient
from jaxtrpo.algorithms.trust_region import Path, make_policy_step, no_path, require_line_search, step_work
from jaxtrpo.config.checks import require_positive, require_share, require_whole
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.ops.running_mean import RunningMean, no_mean


class Memory(NamedTuple):
    """Memory of previous policy steps."""

    path: Path
    advantage_variance: RunningMean  # over the last updates, before standardising


def no_memory(params: PyTree) -> Memory:
    """Returns the memory before the first step."""
    return Memory(no_path(params), no_mean())


def trpo(
    *,
    max_kl: float = 0.01,
    gae_lambda: float = 0.95,
    advantage_memory: int = 100,
    fisher_samples: int = 512,
    cg_iterations: int = 15,
    cg_damping: float | None = None,
    line_search_shrink: float = 0.8,
    line_search_steps: int = 10,
) -> Algorithm:
    """Trust region policy optimisation (TRPO): natural gradient steps with a KL bound and a line search.

    Args:
      max_kl: initial trust region: upper bound on the mean KL divergence between the policies before and after an
        update, nats.
      gae_lambda: lambda of GAE, trading bias (0) against variance (1); 1 gives Monte Carlo returns.
      advantage_memory: number of updates over which the variance of the advantages is averaged. An update with a
        smaller variance gets a proportionally smaller trust region; 0 turns this off.
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
    spec_string = spec_string_of(trpo, locals())
    require_positive(max_kl=max_kl)
    require_share(gae_lambda=gae_lambda)
    require_whole(0, advantage_memory=advantage_memory)
    require_natural_gradient(fisher_samples, cg_iterations, cg_damping)
    require_line_search(line_search_shrink, line_search_steps)

    def make(spec: Spec) -> Learner:
        damping = damping_for(cg_damping, spec.policy, spec.observations)
        policy_step = make_policy_step(
            make_direction(spec.policy, spec.surrogate, fisher_samples, cg_iterations, damping),
            line_search_shrink=line_search_shrink,
            line_search_steps=line_search_steps,
        )

        def step(params, memory, action, found, hyperparameters, key):
            bound, usual = hyperparameters["max_kl"], memory.advantage_variance
            if advantage_memory:
                usual, share = compare_with_usual(usual, found.variance, advantage_memory)
                bound = share * bound
            params, path, info = policy_step(params, memory.path, action, found, bound, key)
            return params, Memory(path, usual), info._asdict()

        work = step_work(spec.policy, fisher_samples, cg_iterations)
        return actor_critic(spec, step=step, no_memory=no_memory, work=work, gae_lambda=gae_lambda)

    starts = {"max_kl": max_kl, "steps_per_update": 1024}
    return Algorithm(
        spec_string, starts, make, adapt="trust", uses_surrogate=True, refuses_shared=CONTROLS_KL, long_horizon=True
    )
