"""Advantage actor-critic, the synchronous form of A3C (Mnih et al. 2016)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxtrpo.algorithms import sequences
from jaxtrpo.algorithms.actor_critic import about, moments_of, no_observations, rate_of
from jaxtrpo.algorithms.advantages import Advantages, estimate_advantages, standardize
from jaxtrpo.algorithms.algorithm import Algorithm, Asynchronous, Info, Learner, Spec
from jaxtrpo.algorithms.policy_gradient import ADAPT, PolicyGradient, ascend, policy_gradient
from jaxtrpo.algorithms.shared_torso import VALUE_WEIGHT, joint_batch, require_effect, sound_returns
from jaxtrpo.config.checks import require_bool, require_not_negative, require_positive, require_share
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.critics.critic import sound_fit
from jaxtrpo.ops.moments import Moments, merge
from jaxtrpo.rollout.types import Batch, Hyperparameters, LearnerState

# With a slower critic and a smaller lambda, CartPole-v1 takes several times as many steps.
CRITIC = "mlp(learning_rate=0.01)"
# Five steps of each environment per update, as in Mnih et al. (2016, supplement, section 8). With 32 and the same
# learning rate, there are too few updates to learn CartPole-v1 and Hopper-v5.
STEPS_OF_EACH, NUM_ENVS = 5, 16


class _Gradients(NamedTuple):
    """Gradients and observation moments of one batch, not applied yet."""

    policy: Float[Array, " parameter"]
    critic: Any  # `Gradient`; with a value head, `Moments` of the returns
    observations: Moments


def a2c(
    *,
    learning_rate: float = 3e-3,
    gae_lambda: float = 0.98,
    entropy_bonus: float = 0.01,
    max_gradient_norm: float = 0.5,
    value_weight: float = VALUE_WEIGHT,
    asynchronous: bool = False,
) -> Algorithm:
    """Advantage actor-critic (A2C): short rollouts, each followed by one gradient step of policy and critic.

    Returns are lambda-returns that bootstrap from the critic at the end of the batch; `gae_lambda=1` gives n-step
    returns. The policy uses RMSprop. The critic takes one step of its own optimiser per update, regardless of its
    `epochs` and `minibatch_size`; the value head of a shared policy learns along with the policy.

    Args:
      learning_rate: initial learning rate of RMSprop. By default it decays linearly to 0 over the run; the critic's
        decays in proportion.
      gae_lambda: lambda of GAE, trading bias (0) against variance (1); 1 gives n-step returns.
      entropy_bonus: coefficient of the entropy bonus, relative to advantages with standard deviation 1.
      max_gradient_norm: maximum norm, to which the policy gradient is clipped; with a shared policy, the gradient of
        both losses.
      value_weight: coefficient of the value loss of a shared policy, the mean squared error of normalised returns; for
        other policies it must keep its default.
      asynchronous: whether actors apply their gradients without waiting for each other, which is A3C. Each actor copies
        the parameters, collects a batch with them and applies its gradient to the shared parameters, which other actors
        may have updated meanwhile; the metric `staleness` counts these updates. Optimiser state is shared. Runs are
        then not reproducible bit by bit, and each row of the metrics describes one gradient.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    spec_string = spec_string_of(a2c, locals())
    require_bool(asynchronous=asynchronous)
    make = _learner_of(learning_rate, gae_lambda, entropy_bonus, max_gradient_norm, value_weight)
    return Algorithm(
        spec_string,
        {"learning_rate": learning_rate, "steps_per_update": STEPS_OF_EACH * NUM_ENVS},
        make if asynchronous else lambda spec: make(spec)._replace(asynchronous=None),
        adapt=ADAPT,
        critic=CRITIC,
        num_envs=NUM_ENVS,
        steps_of_each=STEPS_OF_EACH,
        updates_at_once=1 if asynchronous else 16,
        refuses_shared=None,
    )


def _learner_of(
    learning_rate: float, gae_lambda: float, entropy_bonus: float, max_gradient_norm: float, value_weight: float
):
    """Checks the settings of `a2c`, and returns a function from a `Spec` to a learner."""
    require_positive(learning_rate=learning_rate, max_gradient_norm=max_gradient_norm)
    require_share(gae_lambda=gae_lambda)
    require_not_negative(entropy_bonus=entropy_bonus, value_weight=value_weight)
    optimizer = optax.chain(
        optax.clip_by_global_norm(float(max_gradient_norm)), optax.scale_by_rms(decay=0.99, eps=1e-5)
    )

    def make(spec: Spec) -> Learner:
        require_effect("a2c", spec, value_weight=(value_weight, VALUE_WEIGHT))
        if spec.policy.value_head is None:
            gradient, apply = _separate(spec, optimizer, learning_rate, gae_lambda, entropy_bonus)
        else:
            gradient, apply = _shared(spec, optimizer, gae_lambda, entropy_bonus, value_weight)

        def init(for_policy: PRNGKeyArray, for_critic: PRNGKeyArray) -> LearnerState:
            params = spec.policy.init(for_policy)
            memory = optimizer.init(ravel_pytree(params)[0])
            return LearnerState(params, spec.critic.init(for_critic), no_observations(spec), memory)

        def learn(
            learner: LearnerState, batch: Batch, hyperparameters: Hyperparameters, key: PRNGKeyArray
        ) -> tuple[LearnerState, Info]:
            found, info = gradient(learner, batch, hyperparameters, key)
            return apply(learner, found, hyperparameters), info

        return Learner(init, learn, Asynchronous(gradient, apply))

    return make


def _separate(
    spec: Spec,
    optimizer: optax.GradientTransformation,
    learning_rate: float,
    gae_lambda: float,
    entropy_bonus: float,
) -> Asynchronous:
    """Returns both halves of learning with separate networks."""
    policy, critic = spec.policy, spec.critic
    if critic.gradient is None or critic.apply is None:
        raise ValueError("critic: a2c takes single gradient steps and needs a network as critic, such as mlp")
    critic_gradient, critic_apply = critic.gradient, critic.apply

    def gradient(
        learner: LearnerState, batch: Batch, hyperparameters: Hyperparameters, key: PRNGKeyArray
    ) -> tuple[_Gradients, Info]:
        moments = learner.obs_moments
        unscaled = estimate_advantages(
            critic, learner.critic, moments, batch, discount=spec.discount, gae_lambda=gae_lambda
        )
        found = standardize(unscaled, moments)
        action, to_follow = sequences.for_policy(
            policy, batch.steps.action, batch.steps.mask, found, batch.carries.policy
        )
        targets = sequences.targets_in_sequence(critic.recurrence, found.targets, batch.carries.critic)
        of_policy = policy_gradient(policy, learner.policy, action, to_follow, entropy_bonus)
        seen = _observations(batch, found)
        info = _info(spec, learner.policy, to_follow, of_policy)
        followed = jnp.where(moments.known, of_policy.gradient, 0.0)  # a bonus must not be followed, either
        return _Gradients(followed, critic_gradient(learner.critic, targets), seen), info

    def apply(learner: LearnerState, found: _Gradients, hyperparameters: Hyperparameters) -> LearnerState:
        params, memory = ascend(
            optimizer, learner.policy, learner.memory, found.policy, hyperparameters["learning_rate"]
        )
        fitted = critic_apply(learner.critic, found.critic, rate_of(hyperparameters, learning_rate))
        fitted = sound_fit(fitted, learner.critic)
        return LearnerState(params, fitted, _merged(spec, learner.obs_moments, found.observations), memory)

    return Asynchronous(gradient, apply)


def _shared(
    spec: Spec, optimizer: optax.GradientTransformation, gae_lambda: float, entropy_bonus: float, value_weight: float
) -> Asynchronous:
    """Returns both halves of learning with a policy that has a value head."""

    def gradient(
        learner: LearnerState, batch: Batch, hyperparameters: Hyperparameters, key: PRNGKeyArray
    ) -> tuple[_Gradients, Info]:
        joint = joint_batch(spec, learner, batch, gae_lambda)
        params, to_follow = joint.state.params, joint.to_follow
        of_both = policy_gradient(spec.policy, params, joint.action, to_follow, entropy_bonus, value_weight)
        # While observations are normalised to 0, the torso would only learn to ignore them.
        followed = jnp.where(learner.obs_moments.known, of_both.gradient, 0.0)
        seen = _observations(batch, joint.found)
        return _Gradients(followed, joint.seen, seen), _info(spec, params, to_follow, of_both)

    def apply(learner: LearnerState, found: _Gradients, hyperparameters: Hyperparameters) -> LearnerState:
        state = sound_returns(learner.critic._replace(params=learner.policy), found.critic)
        rate = hyperparameters["learning_rate"]
        params, memory = ascend(optimizer, state.params, learner.memory, found.policy, rate)
        moments = _merged(spec, learner.obs_moments, found.observations)
        return LearnerState(params, state._replace(params=()), moments, memory)

    return Asynchronous(gradient, apply)


def _observations(batch: Batch, found: Advantages) -> Moments:
    return moments_of(batch.steps.obs, found.targets.weight, batch.num_segments)


def _info(spec: Spec, params: PyTree, found: Advantages, of_policy: PolicyGradient) -> Info:
    return {
        **about(spec, params, found),
        "entropy": of_policy.entropy,
        "gradient_norm": jnp.linalg.norm(of_policy.gradient),
    }


def _merged(spec: Spec, moments: Moments, seen: Moments) -> Moments:
    return merge(moments, seen) if spec.normalize_observations else moments
