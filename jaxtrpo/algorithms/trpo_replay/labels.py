"""Use of the action-value critic in an algorithm: labels for its fit, and the surrogate that it defines."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, PyTree, UInt32

from jaxtrpo.algorithms.advantages import ActionAdvantage
from jaxtrpo.algorithms.algorithm import Spec
from jaxtrpo.algorithms.surrogates import Samples, Surrogate
from jaxtrpo.critics.action_values import ActionCritic, ActionCriticState, Labelled
from jaxtrpo.ops.gae import empty_tail, generalized_advantages
from jaxtrpo.ops.moments import Moments, normalize
from jaxtrpo.policies.distributions import Differentiable, Distribution
from jaxtrpo.policies.networks import Policy
from jaxtrpo.rollout.replay import Replay, Ring, Transitions


def critic_surrogate(actions: ActionCritic, state: ActionCriticState) -> Surrogate:
    """Returns the surrogate E_policy[advantage] by the action-value critic; differentiable in the policy."""

    def surrogate(new: Distribution, samples: Samples) -> Float[Array, " step"]:
        assert isinstance(new, Differentiable)
        value = functools.partial(actions.advantage, state, samples.obs)
        return new.expected_value(samples.old, samples.action, value)

    return surrogate


def advantage_over(actions: ActionCritic, state: ActionCriticState, policy: Policy, params: PyTree) -> ActionAdvantage:
    """Returns a function that predicts the advantages of a policy's own actions with the action-value critic."""

    def found(obs: Float[Array, "... obs"], action: Num[Array, "... action"]) -> Float[Array, "..."]:
        return actions.advantage_over(state, usual_actions(policy, params, obs), obs, action, action)

    return found


def usual_actions(policy: Policy, params: PyTree, obs: Float[Array, "... obs"]) -> Differentiable:
    """Returns the policy's distributions, which must be differentiable in their parameters."""
    found = policy.apply(params, obs)
    assert isinstance(found, Differentiable)
    return found


def draw_labelled(
    buffer: Replay,
    ring: Ring,
    actions: ActionCritic,
    moments: Moments,
    params: PyTree,
    critic_lambda: float,
    spec: Spec,
) -> Callable[[ActionCriticState, UInt32[Array, "2"], int], Labelled]:
    """Returns the function that draws labelled steps for `ActionCritic.fit`; for the arguments see `label`."""

    def draw(state: ActionCriticState, key: UInt32[Array, "2"], number: int) -> Labelled:
        for_rows, for_kept, for_others = jax.random.split(key, 3)
        stretches = -(-number // spec.segment_length)
        drawn = buffer.draw_stretches(ring, for_rows, stretches)
        labelled = label(drawn, actions, state, moments, params, critic_lambda, spec, for_others)
        # Time before stretch, so that a minibatch mixes steps of many stretches.
        flat = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[2:]), labelled)
        if stretches * spec.segment_length == number:
            return flat
        # A random subset, so that steps at the end of a stretch are as likely as others.
        kept = jax.random.permutation(for_kept, stretches * spec.segment_length)[:number]
        return jax.tree.map(lambda leaf: leaf[kept], flat)

    return draw


def label(
    drawn: Transitions,
    actions: ActionCritic,
    state: ActionCriticState,
    moments: Moments,
    params: PyTree,
    critic_lambda: float,
    spec: Spec,
    key: UInt32[Array, "2"],
) -> Labelled:
    """Estimates the returns of steps in stretches of replayed experience, as if the current policy acted after each.

    Args:
      drawn: replayed steps with axes stretch, time.
      actions: action-value critic, whose target network provides values for bootstrapping.
      state: state of the critic.
      moments: observation moments.
      params: policy parameters.
      critic_lambda: lambda of the returns, see `ops.gae`. Returns bootstrap at the end of a stretch, and the effect of
        later actions within it is subtracted.
      spec: provides policy, discount and action space.
      key: PRNG key for sampling the policy's own actions.

    Returns:
      Labelled steps with axes stretch, time.
    """
    obs = normalize(drawn.obs, moments)
    value = actions.value(state, obs)
    terminated = drawn.terminated > 0
    # The next row continues the episode if its elapsed time is one step later.
    continues = drawn.elapsed[:, 1:] == drawn.elapsed[:, :-1] + 1
    cut = ~terminated & jnp.concatenate([~continues, jnp.ones((len(continues), 1), bool)], axis=1)

    def values_after(chosen: Int[Array, "stretch few"]) -> Float[Array, "stretch time"]:
        final_obs = jnp.take_along_axis(drawn.final_obs, chosen[..., None], axis=1)
        found = actions.value(state, normalize(final_obs, moments))
        return jnp.put_along_axis(jnp.zeros_like(value), chosen, found, axis=1, inplace=False)

    # The next observation is in the next row except at cuts: at the end of a stretch and rarely once within it.
    within = cut.at[:, -1].set(False)
    length = cut.shape[1]
    last = jnp.full(len(cut), length - 1)
    final_value = jax.lax.cond(
        jnp.all(jnp.sum(within, axis=1) <= 1),
        lambda: values_after(jnp.stack([jnp.argmax(within, axis=1), last], axis=1)),
        lambda: values_after(jnp.broadcast_to(jnp.arange(length), cut.shape)),
    )
    action = drawn.action.astype(jnp.int32) if spec.actions.counts else drawn.action  # the buffer stores floats
    # Mapped over rows, because leaves of distributions may have fewer axes than observations.
    usual = jax.vmap(jax.vmap(functools.partial(usual_actions, spec.policy, params)))(obs)
    other = usual.sample(spec.policy.draw_noise(key, (*obs.shape[:-1], spec.policy.noise_size)))
    known = actions.advantage_over(state, usual, obs, action, other).T if critic_lambda else None
    advantage, _ = generalized_advantages(
        drawn.reward.T,
        value.T,
        final_value.T,
        terminated.T,
        cut.T,
        drawn.weight.T > 0,
        empty_tail(len(obs)),
        discount=spec.discount,
        gae_lambda=critic_lambda,
        action_advantage=known,
    )
    return Labelled(obs, action, usual, other, value + advantage.T, drawn.weight)
