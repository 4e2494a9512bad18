"""The critic of actions in an algorithm: what it is fitted to, and what it says as an objective of the policy."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, PRNGKeyArray, PyTree, UInt32

from jaxtrpo.algorithms.advantages import ActionAdvantage
from jaxtrpo.algorithms.algorithm import Spec
from jaxtrpo.critics.actions import ActionCritic, ActionCriticState, Labelled
from jaxtrpo.losses import Samples, Surrogate
from jaxtrpo.ops.gae import empty_tail, generalized_advantages
from jaxtrpo.ops.moments import Moments, normalize
from jaxtrpo.policies.distributions import Differentiable, Distribution, encoded
from jaxtrpo.replay import Transitions


def critic_surrogate(actions: ActionCritic, state: ActionCriticState, spec: Spec) -> Surrogate:
    """What the critic of actions expects of a policy, as an objective per step; differentiable in the policy."""

    def surrogate(new: Distribution, samples: Samples) -> Float[Array, " step"]:
        assert isinstance(new, Differentiable)
        return new.expected_value(samples.old, samples.action, _worth(actions, state, spec, samples.obs))

    return surrogate


def advantage_over(
    actions: ActionCritic,
    state: ActionCriticState,
    spec: Spec,
    params: PyTree,
    scale: Float[Array, ""],
    key: PRNGKeyArray | UInt32[Array, "2"] | None = None,
) -> ActionAdvantage:
    """How much better actions are than what a policy would do, by the critic of actions.

    Args:
      actions: the critic.
      state: what it has learned.
      spec: policy and actions.
      params: of the policy.
      scale: that the advantages which it was fitted to were divided by.
      key: of the actions to compare with. Without it they are made of those that are judged, which then must be the
        policy's own.
    """

    def found(obs: Float[Array, "... obs"], action: Num[Array, "... action"]) -> Float[Array, "..."]:
        usual = spec.policy.apply(params, obs)
        assert isinstance(usual, Differentiable)
        value = _worth(actions, state, spec, obs)
        other = action
        if key is not None:
            other = usual.sample(spec.policy.draw_noise(key, (*obs.shape[:-1], spec.policy.noise_size)))
        return scale * (value(action) - usual.expected_value(usual, other, value))

    return found


def _worth(
    actions: ActionCritic, state: ActionCriticState, spec: Spec, obs: Float[Array, "... obs"]
) -> Callable[[Num[Array, "... action"]], Float[Array, "..."]]:
    """(actions, with any further leading axes) -> what the critic of actions says of them in these states."""

    def value(action: Num[Array, "... action"]) -> Float[Array, "..."]:
        features = encoded(action, spec.actions)
        return actions.advantage(state, jnp.broadcast_to(obs, (*features.shape[:-1], obs.shape[-1])), features)

    return value


def label(
    drawn: Transitions,
    state: PyTree,
    moments: Moments,
    scale: Float[Array, ""],
    critic_lambda: float,
    spec: Spec,
    action_advantage: ActionAdvantage | None = None,
) -> Labelled:
    """What stretches of steps were worth, over `scale`.

    Args:
      drawn: axes stretch, time.
      state: of the run's value critic.
      moments: of observations.
      scale: that advantages are divided by.
      critic_lambda: see `ops.gae`. Nothing is known of what follows a stretch but its value.
      spec: value critic, discount and actions.
      action_advantage: takes what the later actions of a stretch happened to be out of its labels (see `ops.gae`).
    """
    obs = normalize(drawn.obs, moments)
    elapsed = drawn.elapsed.astype(jnp.int32)
    value = spec.critic.value(state, obs, elapsed)
    terminated = drawn.terminated > 0
    # The next row is the next step of the episode if it is one step further into it.
    goes_on = drawn.elapsed[:, 1:] == drawn.elapsed[:, :-1] + 1
    cut = ~terminated & jnp.concatenate([~goes_on, jnp.ones_like(goes_on[:, :1])], axis=1)

    def values_after(chosen: Int[Array, "stretch few"]) -> Float[Array, "stretch time"]:
        final_obs = jnp.take_along_axis(drawn.final_obs, chosen[..., None], axis=1)
        found = spec.critic.value(
            state, normalize(final_obs, moments), jnp.take_along_axis(elapsed, chosen, axis=1) + 1
        )
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
    action = _as_taken(drawn.action, spec)
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
        action_advantage=None if action_advantage is None else action_advantage(obs, action).T,
    )
    return Labelled(obs, encoded(action, spec.actions), advantage.T / scale, drawn.weight)


def _as_taken(action: Float[Array, "... action"], spec: Spec) -> Array:
    """The buffer holds real numbers; choices are whole ones."""
    return action.astype(jnp.int32) if spec.actions.counts else action
