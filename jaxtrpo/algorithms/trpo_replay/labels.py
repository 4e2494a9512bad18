"""The critic of actions in an algorithm: what it is fitted to, and what it says as an objective of the policy."""

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
    """What the critic of actions expects of a policy, as an objective per step; differentiable in the policy."""

    def surrogate(new: Distribution, samples: Samples) -> Float[Array, " step"]:
        assert isinstance(new, Differentiable)
        value = functools.partial(actions.advantage, state, samples.obs)
        return new.expected_value(samples.old, samples.action, value)

    return surrogate


def advantage_over(actions: ActionCritic, state: ActionCriticState, policy: Policy, params: PyTree) -> ActionAdvantage:
    """How much better a policy's own actions are than what it does in the mean, by the critic of actions."""

    def found(obs: Float[Array, "... obs"], action: Num[Array, "... action"]) -> Float[Array, "..."]:
        return actions.advantage_over(state, usual_actions(policy, params, obs), obs, action, action)

    return found


def usual_actions(policy: Policy, params: PyTree, obs: Float[Array, "... obs"]) -> Differentiable:
    """The policy's distributions, through which can be differentiated."""
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
    """How to draw steps and what they were worth, as `ActionCritic.fit` wants it; for the arguments see `label`."""

    def draw(state: ActionCriticState, key: UInt32[Array, "2"], number: int) -> Labelled:
        for_rows, for_kept, for_others = jax.random.split(key, 3)
        stretches = -(-number // spec.segment_length)
        drawn = buffer.draw_stretches(ring, for_rows, stretches)
        labelled = label(drawn, actions, state, moments, params, critic_lambda, spec, for_others)
        # Time before stretch, so that a minibatch has steps of many.
        flat = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[2:]), labelled)
        if stretches * spec.segment_length == number:
            return flat
        # Steps at the end of a stretch count as much as others.
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
    """What the steps of stretches were worth, and are to a policy that goes on after them.

    Args:
      drawn: axes stretch, time.
      actions: critic of actions, whose values say what follows.
      state: of it.
      moments: of observations.
      params: of the policy.
      critic_lambda: see `ops.gae`. Nothing is known of what follows a stretch but its value. What the later actions of
        a stretch happened to be is taken out of what its earlier steps were worth.
      spec: policy, discount and actions.
      key: of the policy's own actions.
    """
    obs = normalize(drawn.obs, moments)
    value = actions.value(state, obs)
    terminated = drawn.terminated > 0
    # The next row is the next step of the episode if it is one step further into it.
    goes_on = drawn.elapsed[:, 1:] == drawn.elapsed[:, :-1] + 1
    cut = ~terminated & jnp.concatenate([~goes_on, jnp.ones_like(goes_on[:, :1])], axis=1)

    def values_after(chosen: Int[Array, "stretch few"]) -> Float[Array, "stretch time"]:
        final_obs = jnp.take_along_axis(drawn.final_obs, chosen[..., None], axis=1)
        found = actions.value(state, normalize(final_obs, moments))
        return jnp.put_along_axis(jnp.zeros_like(value), chosen, found, axis=1, inplace=False)

    # What a step led to stands in the next row but where it is cut: at the end of a stretch, and seldom once within.
    within = cut.at[:, -1].set(False)
    length = cut.shape[1]
    last = jnp.full(len(cut), length - 1)
    final_value = jax.lax.cond(
        jnp.all(jnp.sum(within, axis=1) <= 1),
        lambda: values_after(jnp.stack([jnp.argmax(within, axis=1), last], axis=1)),
        lambda: values_after(jnp.broadcast_to(jnp.arange(length), cut.shape)),
    )
    action = drawn.action.astype(jnp.int32) if spec.actions.counts else drawn.action  # the buffer holds real numbers
    # By the row, because a leaf of distributions may have fewer axes than observations.
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
