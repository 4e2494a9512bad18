"""What most algorithms share: advantages, a step of the policy beside a fit of the critic, moments of observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Num, PRNGKeyArray, PyTree

from jaxtrpo.algorithms.advantages import Advantages, Unscaled, estimate_advantages, normalized, standardize
from jaxtrpo.algorithms.algorithm import Info, Learner, Spec
from jaxtrpo.critics.critic import Targets
from jaxtrpo.ops.moments import Moments, merge, no_moments, unknown_moments, weighted_moments
from jaxtrpo.ops.tree import all_finite
from jaxtrpo.parallel.collectives import (
    Work,
    after,
    by_one,
    gather_envs,
    num_actors,
    side_by_side,
    sum_over_actors,
    worth_side_by_side,
)
from jaxtrpo.rollout.types import Batch, Hyperparameters, LearnerState, Steps

# (policy's parameters, memory, actions, advantages, hyperparameters, key) -> (parameters, memory, what the step did)
Step = Callable[[PyTree, PyTree, Array, Advantages, Hyperparameters, PRNGKeyArray], tuple[PyTree, PyTree, Info]]


def actor_critic(
    spec: Spec,
    *,
    step: Step,
    no_memory: Callable[[PyTree], PyTree],
    work: Callable[[PyTree, int], Work],
    gae_lambda: float,
    learning_rate: float | None = None,
) -> Learner:
    """Builds a learner whose policy makes one `step` a batch, and whose critic is fitted to lambda-returns.

    Args:
      spec: what to learn with.
      step: of the policy, from advantages that the critic found before it was fitted. With several actors it is run
        by each with its part of the batch, or by one with all of it while another fits the critic.
      no_memory: policy's parameters -> what `step` remembers at first.
      work: (policy's parameters, samples of all actors) -> of a step.
      gae_lambda: see `ops.gae`.
      learning_rate: that the policy starts with, where it has one: what a rule makes of it the critic's follows.
    """
    policy, critic = spec.policy, spec.critic

    def init(for_policy: PRNGKeyArray, for_critic: PRNGKeyArray) -> LearnerState:
        params = policy.init(for_policy)
        return LearnerState(params, critic.init(for_critic), no_observations(spec), no_memory(params))

    def learn(
        learner: LearnerState, batch: Batch, hyperparameters: Hyperparameters, key: PRNGKeyArray
    ) -> tuple[LearnerState, Info]:
        for_policy, for_critic = jax.random.split(key)
        unscaled = estimate_advantages(
            critic, learner.critic, learner.obs_moments, batch, discount=spec.discount, gae_lambda=gae_lambda
        )
        steps = Acted(batch.steps.obs, batch.steps.action)
        samples = unscaled.targets.weight.size * num_actors()  # of the largest batch, because the choice is compiled
        beside = worth_side_by_side([work(learner.policy, samples)], [critic.work(learner.critic, samples)])
        if beside:
            steps, unscaled = of_everyone(steps, unscaled, learner.obs_moments)
        once = by_one if beside else lambda task: task  # whoever has everything meets nobody for it
        found = once(lambda: standardize(unscaled, learner.obs_moments))()

        def improve() -> tuple[PyTree, PyTree, Info]:
            return step(learner.policy, learner.memory, steps.action, found, hyperparameters, for_policy)

        def fit(targets: Targets) -> PyTree:
            return critic.fit(learner.critic, targets, for_critic, rate_of(hyperparameters, learning_rate))

        if beside:
            (params, memory, info), fitted = side_by_side(improve, lambda: fit(found.targets))
        else:
            params, memory, info = improve()
            fitted = fit(after(params, found.targets))

        def conclude() -> tuple[Moments, Info]:
            return with_observations(spec, learner.obs_moments, steps.obs, found), about(spec, params, found)

        moments, more = once(conclude)()
        fitted = optax.tree.where(all_finite(fitted), fitted, learner.critic)
        # By name, because actors that share the work do not keep another order.
        return LearnerState(params, fitted, moments, memory), {**more, **dict(sorted(info.items()))}

    return Learner(init, learn)


def rate_of(hyperparameters: Hyperparameters, learning_rate: float | None) -> Float[Array, ""]:
    """What a rule has made of the learning rate that an algorithm started with: a factor, 1 where it has none."""
    return jnp.ones(()) if learning_rate is None else hyperparameters["learning_rate"] / learning_rate


class Acted(NamedTuple):
    """What is learned from steps themselves: one actor's part, or everyone's."""

    obs: Float[Array, "segment time env obs"]  # as the simulator gave it
    action: Num[Array, "segment time env action"]


Seen = TypeVar("Seen", Acted, Steps)


def of_everyone(steps: Seen, found: Unscaled, moments: Moments) -> tuple[Seen, Unscaled]:
    """What all actors have seen, in one meeting; whoever has it needs nobody to learn from it.

    Args:
      steps: of this actor, as many of their fields as are needed.
      found: what it made of them.
      moments: that observations are normalised with.
    """
    targets = found.targets
    dealt = steps, found.advantage, targets.elapsed, targets.value, targets.weight, found.known
    steps, advantage, elapsed, value, weight, known = gather_envs(dealt, axis=2)
    number = targets.num_segments
    obs = normalized(steps.obs, moments, number)
    return steps, Unscaled(advantage, Targets(obs, elapsed, value, weight, number), known)


def no_observations(spec: Spec) -> Moments:
    """Moments of observations before the first batch, all of which is normalised to 0, as its scale is not known.

    Otherwise how a run begins would depend on the units that observations are measured in. That batch is one
    segment, which shows them; policies do not learn from it (see `standardize`).
    """
    return (unknown_moments if spec.normalize_observations else no_moments)((spec.observation_size,))


def with_observations(
    spec: Spec, moments: Moments, obs: Float[Array, "segment time env obs"], found: Advantages
) -> Moments:
    """Takes a batch into the moments. Only after it was learned from: it is judged by those that it was acted with."""
    if not spec.normalize_observations:
        return moments
    return merge(moments, weighted_moments(obs, found.targets.weight, sum_over_actors, found.targets.num_segments))


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
