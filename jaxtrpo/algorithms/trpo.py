"""Trust region policy optimisation (Schulman et al. 2015), on one actor's part of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxtrpo.actors import gather_envs, num_actors, side_by_side, sum_over_actors, worth_side_by_side
from jaxtrpo.algorithms.advantages import Advantages, compare_with_usual, estimate_advantages
from jaxtrpo.algorithms.trust_region import Path, StepInfo, make_policy_step, policy_step_flops
from jaxtrpo.critics.critic import Critic
from jaxtrpo.losses import Surrogate, importance_weighted_advantage
from jaxtrpo.ops.moments import merge, weighted_moments
from jaxtrpo.ops.tree import all_finite
from jaxtrpo.policies.networks import Policy
from jaxtrpo.types import Batch, LearnerState


class LearnInfo(NamedTuple):
    """What one update did to the learner."""

    step: StepInfo  # the policy's
    explained_variance: Float[Array, ""]  # of the critic's targets, by the critic before the fit
    policy_std: Float[Array, ""]  # after the step, mean over action coordinates
    advantage_std: Float[Array, ""]  # before advantages were standardised


Learn = Callable[[LearnerState, Batch, Float[Array, ""], PRNGKeyArray], tuple[LearnerState, LearnInfo]]


def make_learn(
    policy: Policy,
    critic: Critic,
    *,
    discount: float = 0.99,
    gae_lambda: float = 0.95,
    advantage_memory: int = 100,
    surrogate: Surrogate = importance_weighted_advantage,
    fisher_samples: int = 512,
    cg_iterations: int = 15,
    cg_damping: float = 0.03,
    line_search_shrink: float = 0.8,
    line_search_steps: int = 10,
    normalize_observations: bool = True,
) -> Learn:
    """Builds one update of the learner.

    Args:
      policy: to improve.
      critic: to fit.
      discount: per environment step.
      gae_lambda: see `ops.gae`.
      advantage_memory: updates that say how large advantages usually are; where they are smaller, so is the trust
        region (see `compare_with_usual`). 0 leaves it alone.
      surrogate: objective per step (see `losses`).
      fisher_samples: states of all actors that the Fisher matrix is estimated on, drawn anew each update.
      cg_iterations: products with the Fisher matrix, at most.
      cg_damping: added to its diagonal, as a part of the curvature along the gradient.
      line_search_shrink: factor between trials.
      line_search_steps: trials before giving up.
      normalize_observations: update the observation moments with each batch.

    Returns:
      (learner state, batch, max_kl, key) -> (learner state, info), to be mapped over actors.
    """
    policy_step = make_policy_step(
        policy,
        surrogate=surrogate,
        fisher_samples=fisher_samples,
        cg_iterations=cg_iterations,
        cg_damping=cg_damping,
        line_search_shrink=line_search_shrink,
        line_search_steps=line_search_steps,
    )

    def step_and_fit(
        learner: LearnerState, action: Array, found: Advantages, max_kl: Float[Array, ""], key: PRNGKeyArray
    ) -> tuple[tuple[PyTree, Path, StepInfo], PyTree]:
        """What the policy's step gives, and the fitted critic's state."""
        for_policy, for_critic = jax.random.split(key)
        targets = found.targets
        samples = targets.weight.size * num_actors()  # of the largest batch, because the choice is compiled
        beside = worth_side_by_side(
            policy_step_flops(learner.policy, samples, fisher_samples=fisher_samples, cg_iterations=cg_iterations),
            critic.repeated_flops(learner.critic, samples),
        )
        if beside:
            dealt = action, found.advantage, targets._replace(num_segments=None)
            action, advantage, targets = gather_envs(dealt, axis=2)
            targets = targets._replace(num_segments=found.targets.num_segments)
            found = found._replace(advantage=advantage, targets=targets)

        def step() -> tuple[PyTree, Path, StepInfo]:
            return policy_step(learner.policy, learner.path, action, found, max_kl, for_policy)

        def fit() -> PyTree:
            return critic.fit(learner.critic, targets, for_critic)

        return side_by_side(step, fit) if beside else (step(), fit())

    def learn(
        learner: LearnerState, batch: Batch, max_kl: Float[Array, ""], key: PRNGKeyArray
    ) -> tuple[LearnerState, LearnInfo]:
        found = estimate_advantages(
            critic, learner.critic, learner.obs_moments, batch, discount=discount, gae_lambda=gae_lambda
        )
        usual = learner.advantage_variance
        if advantage_memory:
            usual, share = compare_with_usual(usual, found.variance, advantage_memory)
            max_kl = share * max_kl
        (params, path, step_info), fitted = step_and_fit(learner, batch.steps.action, found, max_kl, key)
        moments = learner.obs_moments
        if normalize_observations:
            # Only now: this batch had to be judged by the moments that it was acted with.
            seen = weighted_moments(batch.steps.obs, found.targets.weight, sum_over_actors, batch.num_segments)
            moments = merge(moments, seen)
        fitted = optax.tree.where(all_finite(fitted), fitted, learner.critic)
        std = jnp.exp(policy.apply(params, found.targets.obs[0, 0, :1]).log_std)
        info = LearnInfo(step_info, found.explained_variance, jnp.mean(std), jnp.sqrt(found.variance))
        return LearnerState(params, fitted, moments, path, usual), info

    return learn
