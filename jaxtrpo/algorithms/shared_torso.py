"""Learning with one torso for actor and critic: policy loss and value loss are minimised together."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Num, PRNGKeyArray, PyTree

from jaxtrpo.algorithms import sequences
from jaxtrpo.algorithms.actor_critic import Step, about, kept_if, no_observations, with_observations
from jaxtrpo.algorithms.advantages import Advantages, estimate_advantages, standardize
from jaxtrpo.algorithms.algorithm import Info, Learner, Spec
from jaxtrpo.critics.shared import SharedState, moments_of, with_returns
from jaxtrpo.ops.moments import Moments
from jaxtrpo.ops.tree import if_finite
from jaxtrpo.parallel.collectives import after
from jaxtrpo.rollout.types import Batch, Hyperparameters, LearnerState

VALUE_WEIGHT = 0.5


class Joint(NamedTuple):
    """A batch, as policy and value head learn from it together."""

    state: SharedState  # with the returns of the batch in the moments
    seen: Moments  # of the returns of the batch
    found: Advantages  # in segments, also if the policy has memory
    # What is learned from, by stretches if the policy has memory; targets are in the units of the value head.
    action: Num[Array, "segment time env action"]
    to_follow: Advantages


def joint_batch(spec: Spec, learner: LearnerState, batch: Batch, gae_lambda: float) -> Joint:
    """Estimates advantages with the policy's value head, and normalises its targets.

    Targets are normalised with moments that include them, since the moments before the first batch mean nothing.
    """
    # Policy and critic have one memory.
    batch = batch._replace(carries=batch.carries._replace(critic=batch.carries.policy))
    before = learner.critic._replace(params=learner.policy)
    unscaled = estimate_advantages(
        spec.critic, before, learner.obs_moments, batch, discount=spec.discount, gae_lambda=gae_lambda
    )
    found = standardize(unscaled, learner.obs_moments)
    seen = moments_of(found.targets)
    state = sound_returns(before, seen)
    value = (found.targets.value - state.returns.mean) / state.returns.std
    normalised = found._replace(targets=found.targets._replace(value=value))
    action, to_follow = sequences.for_policy(
        spec.policy, batch.steps.action, batch.steps.mask, normalised, batch.carries.policy
    )
    return Joint(state, seen, found, action, to_follow)


def sound_returns(state: SharedState, seen: Moments) -> SharedState:
    """Adds returns to the moments (see `with_returns`) if the result is finite."""
    added = with_returns(state, seen)
    return if_finite(added, state)


def shared_torso(spec: Spec, *, step: Step, no_memory: Callable[[PyTree], PyTree], gae_lambda: float) -> Learner:
    """Builds a learner like `actor_critic` for a policy with a value head, without a critic fit.

    Args:
      spec: policy and sizes to learn with.
      step: as in `actor_critic`, but lets the value head learn, too, from targets in its units. Every
        actor runs it, with its part of the batch.
      no_memory: policy parameters -> initial memory of `step`.
      gae_lambda: see `ops.gae`.
    """

    def init(for_policy: PRNGKeyArray, for_critic: PRNGKeyArray) -> LearnerState:
        params = spec.policy.init(for_policy)
        return LearnerState(params, spec.critic.init(for_critic), no_observations(spec), no_memory(params))

    def learn(
        learner: LearnerState, batch: Batch, hyperparameters: Hyperparameters, key: PRNGKeyArray
    ) -> tuple[LearnerState, Info]:
        joint = joint_batch(spec, learner, batch, gae_lambda)
        joint = after(joint, joint)  # the step may need collectives, too
        before = joint.state.params, learner.memory
        *stepped, info = step(*before, joint.action, joint.to_follow, hyperparameters, key)
        # While observations are normalised to 0, the torso would only learn to ignore them.
        (params, memory), info = kept_if(learner.obs_moments.known, tuple(stepped), before, info)
        params, found = after(info, (params, joint.found))
        moments = with_observations(spec, learner.obs_moments, batch.steps.obs, found)
        more = about(spec, params, joint.to_follow)
        learned = LearnerState(params, joint.state._replace(params=()), moments, memory)
        return learned, {**more, **dict(sorted(info.items()))}

    return Learner(init, learn)


def require_effect(name: str, spec: Spec, **settings: tuple[object, object]) -> None:
    """Checks that settings of the value loss keep their defaults without a shared torso, where they have no effect.

    Args:
      name: name of the algorithm.
      spec: the policy to learn with.
      **settings: value and default by name.

    Raises:
      ValueError: a setting has no effect; one sentence.
    """
    for setting, (value, usual) in settings.items():
        if spec.policy.value_head is None and value != usual:
            raise ValueError(
                f"{setting}={value} of {name} needs a shared torso, such as policy='mlp(shared=True)'; otherwise the "
                "critic has a loss of its own"
            )
