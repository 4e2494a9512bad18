"""The learner that most algorithms share: advantages, a policy step, a critic fit and observation moments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray, PyTree

from jaxtrpo.algorithms import sequences
from jaxtrpo.algorithms.advantages import Advantages, Unscaled, estimate_advantages, normalized, standardize
from jaxtrpo.algorithms.algorithm import Info, Learner, Spec
from jaxtrpo.config.kinds import kinds_differ
from jaxtrpo.config.messages import type_name
from jaxtrpo.critics.critic import Targets, sound_fit
from jaxtrpo.ops.moments import (
    VECTOR,
    Moments,
    merge,
    no_moments,
    observation_moments,
    unknown_moments,
    weighted_moments,
)
from jaxtrpo.ops.tree import all_finite
from jaxtrpo.parallel.collectives import (
    Work,
    after,
    gather_envs,
    num_actors,
    side_by_side,
    sum_over_actors,
    without_collectives,
    worth_side_by_side,
)
from jaxtrpo.policies.recurrence import entry
from jaxtrpo.rollout.types import Batch, Hyperparameters, LearnerState, Steps

# (policy parameters, memory, actions, advantages, hyperparameters, key) -> (policy parameters, memory, info)
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
    """Builds a learner that makes one policy step per batch and fits the critic to lambda-returns.

    Args:
      spec: policy, critic and sizes to learn with.
      step: policy step, given advantages from the critic before its fit. With several actors, either each actor runs it
        on its part of the batch, or one actor runs it on the whole batch while another fits the critic.
      no_memory: policy parameters -> initial memory of `step`.
      work: (policy parameters, samples of all actors) -> cost of a step.
      gae_lambda: see `ops.gae`.
      learning_rate: initial learning rate of the policy, or None. When a rule changes it, the critic's changes in
        proportion.
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
        steps, carries = Acted(batch.steps.obs, batch.steps.action, batch.steps.mask), batch.carries
        # The choice is compiled, so it is made for the largest batch.
        samples = unscaled.targets.weight.size * num_actors()
        split = worth_side_by_side([work(learner.policy, samples)], [critic.work(learner.critic, samples)])
        if split:
            steps, unscaled = gather_samples(steps, unscaled, learner.obs_moments)
            carries = gather_envs(batch.carries, axis=1)
        # With all samples gathered, no collectives are needed.
        once = without_collectives if split else lambda task: task
        found = once(lambda: standardize(unscaled, learner.obs_moments))()
        if not split:
            found = after(found, found)  # the step may need collectives, too
        action, of_policy = sequences.for_policy(policy, steps.action, steps.mask, found, carries.policy)
        of_critic = sequences.targets_in_sequence(critic.recurrence, found.targets, carries.critic)

        def improve() -> tuple[PyTree, PyTree, Info]:
            done = step(learner.policy, learner.memory, action, of_policy, hyperparameters, for_policy)
            params, memory, info = _checked(done, learner.policy, learner.memory)
            # Or else the policy would be lost for ever. In the first batch, all observations look alike: what does not
            # depend on advantages, such as a bonus for entropy, must not be followed there.
            sound = all_finite(params) & learner.obs_moments.known
            before = learner.policy, learner.memory
            (params, memory), info = kept_if(sound, (params, memory), before, {"accepted": sound, **info})
            return params, memory, info

        def fit(targets: Targets) -> PyTree:
            return critic.fit(learner.critic, targets, for_critic, rate_of(hyperparameters, learning_rate))

        if split:
            (params, memory, info), fitted = side_by_side(improve, lambda: fit(of_critic))
        else:
            params, memory, info = improve()
            fitted = fit(after((params, info), of_critic))
            # The sums below must not overtake those of the fit.
            params, found = after(fitted, (params, found))

        def conclude() -> tuple[Moments, Info]:
            return with_observations(spec, learner.obs_moments, steps.obs, found), about(spec, params, of_policy)

        moments, more = once(conclude)()
        fitted = sound_fit(fitted, learner.critic)
        # Sorted by name, the order that results have when actors share the work.
        return LearnerState(params, fitted, moments, memory), {**more, **dict(sorted(info.items()))}

    return Learner(init, learn)


def _checked(done: Any, params: PyTree, memory: PyTree) -> tuple[PyTree, PyTree, Info]:
    """Returns what a step, which may be the user's own, has returned; raises ValueError if it cannot be that."""
    if not isinstance(done, tuple) or len(done) != 3:
        found = f"{len(done)} values" if isinstance(done, tuple) else type_name(done)
        raise ValueError(f"algorithm: step must return policy parameters, memory and metrics, not {found}")
    if not isinstance(done[2], Mapping):
        raise ValueError(f"algorithm: the metrics that step returns must be a dictionary, not {type_name(done[2])}")
    for name, before, now in zip(("policy parameters", "memory"), (params, memory), done, strict=False):
        if difference := kinds_differ(before, now):
            raise ValueError(
                f"algorithm: step must return {name} with the shapes and types of those it got: {difference[0]}, not "
                f"{difference[1]}"
            )
    return done


def rate_of(hyperparameters: Hyperparameters, learning_rate: float | None) -> Float[Array, ""]:
    """Returns the current learning rate over the initial one; 1 for an algorithm without a learning rate."""
    return jnp.ones(()) if learning_rate is None else hyperparameters["learning_rate"] / learning_rate


class Acted(NamedTuple):
    """Observations and actions of one actor, or gathered from all."""

    obs: PyTree  # raw, as returned by the environment; leaves are [segment, time, env, ...]
    action: Num[Array, "segment time env action"]
    mask: Bool[Array, "segment time env choices"] | tuple[()] = ()  # legal choices


StepsT = TypeVar("StepsT", Acted, Steps)


def gather_samples(steps: StepsT, found: Unscaled, moments: Moments) -> tuple[StepsT, Unscaled]:
    """Gathers the samples of all actors in one collective, so that one actor can learn from them alone.

    Args:
      steps: steps of this actor, with the fields that are needed.
      found: this actor's advantages and targets.
      moments: moments that observations are normalised with.

    Returns:
      The steps, advantages and targets of all actors.
    """
    targets = found.targets
    dealt = steps, found.advantage, targets.elapsed, targets.value, targets.weight, found.known
    steps, advantage, elapsed, value, weight, known = gather_envs(dealt, axis=2)
    number = targets.num_segments
    obs = normalized(steps.obs, moments, number)
    return steps, Unscaled(advantage, Targets(obs, elapsed, value, weight, number), known)


def no_observations(spec: Spec) -> Moments:
    """Returns the initial observation moments, with which the first batch is normalised to 0.

    Otherwise the beginning of a run would depend on the units of the observations. The first batch is a single segment,
    collected to estimate their scale; policies do not learn from it (see `standardize`).
    """
    return (unknown_moments if spec.normalize_observations else no_moments)((spec.observations.vector_size,))


def with_observations(spec: Spec, moments: Moments, obs: PyTree, found: Advantages) -> Moments:
    """Merges a batch into the observation moments.

    Call it after learning from the batch, which must be normalised with the moments that the policy acted with.
    """
    if not spec.normalize_observations:
        return moments
    return merge(moments, moments_of(obs, found.targets.weight, found.targets.num_segments))


def kept_if(
    sound: Bool[Array, ""], stepped: tuple[PyTree, PyTree], before: tuple[PyTree, PyTree], info: Info
) -> tuple[tuple[PyTree, PyTree], Info]:
    """Returns policy and memory after a step or, if it must be discarded, before it, and metrics that say so."""
    if "accepted" in info:
        info = {**info, "accepted": sound & info["accepted"]}
    return optax.tree.where(sound, stepped, before), info


def moments_of(obs: PyTree, weight: Float[Array, "segment time env"], num_segments: Int[Array, ""]) -> Moments:
    """Returns the moments of the observations of all actors, leaves [segment, time, env, ...]; images have none."""
    if isinstance(obs, dict):
        if VECTOR not in obs:
            return no_moments((0,))
        obs = obs[VECTOR]
    return observation_moments(obs, weight, sum_over_actors, num_segments)


def with_rewards(rewards: Moments, batch: Batch, weight: Float[Array, "segment time env"]) -> Moments:
    """Merges the rewards of a batch into their moments; `weight` is 1 for a step that counts, else 0."""
    return merge(rewards, weighted_moments(batch.steps.reward, weight, sum_over_actors))


def about(spec: Spec, params: PyTree, found: Advantages) -> Info:
    """Returns the metrics common to all algorithms with a critic."""
    # The policy's summary is taken over the states of the first segment and averaged over actors.
    of_policy = spec.policy.apply(params, entry(found.targets.obs, 0)).summary()
    return {
        **jax.tree.map(lambda value: sum_over_actors(value) / num_actors(), of_policy),
        "explained_variance": found.explained_variance,
        "advantage_std": jnp.sqrt(found.variance),
    }
