"""What most algorithms share: advantages, a step of the policy beside a fit of the critic, moments of observations."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxtrpo.actors import Work, gather_envs, num_actors, side_by_side, sum_over_actors, worth_side_by_side
from jaxtrpo.algorithms.advantages import Advantages, estimate_advantages
from jaxtrpo.algorithms.algorithm import Info, Learner, Spec
from jaxtrpo.ops.moments import Moments, merge, no_moments, weighted_moments
from jaxtrpo.ops.tree import all_finite
from jaxtrpo.types import Batch, Hyperparameters, LearnerState

# (policy's parameters, memory, actions, advantages, hyperparameters, key) -> (parameters, memory, what the step did)
Step = Callable[[PyTree, PyTree, Array, Advantages, Hyperparameters, PRNGKeyArray], tuple[PyTree, PyTree, Info]]


def actor_critic(
    spec: Spec,
    *,
    step: Step,
    no_memory: Callable[[PyTree], PyTree],
    work: Callable[[PyTree, int], Work],
    gae_lambda: float,
) -> Learner:
    """Builds a learner whose policy makes one `step` a batch, and whose critic is fitted to lambda-returns.

    Args:
      spec: what to learn with.
      step: of the policy, from advantages that the critic found before it was fitted. With several actors it is run
        by each with its part of the batch, or by one with all of it while another fits the critic.
      no_memory: policy's parameters -> what `step` remembers at first.
      work: (policy's parameters, samples of all actors) -> of a step.
      gae_lambda: see `ops.gae`.
    """
    policy, critic = spec.policy, spec.critic

    def init(for_policy: PRNGKeyArray, for_critic: PRNGKeyArray) -> LearnerState:
        params = policy.init(for_policy)
        return LearnerState(params, critic.init(for_critic), no_observations(spec), no_memory(params))

    def step_and_fit(
        learner: LearnerState, action: Array, found: Advantages, hyperparameters: Hyperparameters, key: PRNGKeyArray
    ) -> tuple[tuple[PyTree, PyTree, Info], PyTree]:
        """What the policy's step gives, and the fitted critic's state."""
        for_policy, for_critic = jax.random.split(key)
        samples = found.targets.weight.size * num_actors()  # of the largest batch, because the choice is compiled
        beside = worth_side_by_side([work(learner.policy, samples)], [critic.work(learner.critic, samples)])
        if beside:
            action, found = of_everyone(action, found)

        def improve() -> tuple[PyTree, PyTree, Info]:
            return step(learner.policy, learner.memory, action, found, hyperparameters, for_policy)

        def fit() -> PyTree:
            return critic.fit(learner.critic, found.targets, for_critic)

        return side_by_side(improve, fit) if beside else (improve(), fit())

    def learn(
        learner: LearnerState, batch: Batch, hyperparameters: Hyperparameters, key: PRNGKeyArray
    ) -> tuple[LearnerState, Info]:
        found = estimate_advantages(
            critic, learner.critic, learner.obs_moments, batch, discount=spec.discount, gae_lambda=gae_lambda
        )
        (params, memory, info), fitted = step_and_fit(learner, batch.steps.action, found, hyperparameters, key)
        fitted = optax.tree.where(all_finite(fitted), fitted, learner.critic)
        moments = with_observations(spec, learner.obs_moments, batch, found)
        # By name, because actors that share the work do not keep another order.
        info = {**about(spec, params, found), **dict(sorted(info.items()))}
        return LearnerState(params, fitted, moments, memory), info

    return Learner(init, learn)


def of_everyone(action: Array, found: Advantages) -> tuple[Array, Advantages]:
    """Actions and advantages of all actors' environments, which one needs who does a task alone."""
    targets = found.targets
    dealt = action, found.advantage, targets._replace(num_segments=None)
    action, advantage, gathered = gather_envs(dealt, axis=2)
    return action, found._replace(advantage=advantage, targets=gathered._replace(num_segments=targets.num_segments))


def no_observations(spec: Spec) -> Moments:
    """Moments of observations before the first."""
    return no_moments((spec.observation_size,))


def with_observations(spec: Spec, moments: Moments, batch: Batch, found: Advantages) -> Moments:
    """Takes a batch into the moments. Only after it was learned from: it is judged by those that it was acted with."""
    if not spec.normalize_observations:
        return moments
    seen = weighted_moments(batch.steps.obs, found.targets.weight, sum_over_actors, batch.num_segments)
    return merge(moments, seen)


def with_rewards(rewards: Moments, batch: Batch, weight: Float[Array, "segment time env"]) -> Moments:
    """Takes a batch's rewards into the moments of all; `weight` is 1 for a step that counts, else 0."""
    return merge(rewards, weighted_moments(batch.steps.reward, weight, sum_over_actors))


def about(spec: Spec, params: PyTree, found: Advantages) -> Info:
    """What every algorithm with a critic can tell of an update."""
    # Of the first segment's states, on every actor the same.
    of_policy = spec.policy.apply(params, found.targets.obs[0]).summary()
    return {
        **jax.tree.map(lambda value: sum_over_actors(value) / num_actors(), of_policy),
        "explained_variance": found.explained_variance,
        "advantage_std": jnp.sqrt(found.variance),
    }
