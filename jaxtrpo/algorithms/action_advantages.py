"""The critic of actions in an algorithm: what it is fitted to, and what it says as an objective of the policy."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

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
        def value(action: Array) -> Array:
            features = encoded(action, spec.actions)
            obs = jnp.broadcast_to(samples.obs, (*features.shape[:-1], samples.obs.shape[-1]))
            return actions.advantage(state, obs, features)

        assert isinstance(new, Differentiable)
        return new.expected_value(samples.old, samples.action, value)

    return surrogate


def label(
    drawn: Transitions,
    state: PyTree,
    moments: Moments,
    scale: Float[Array, ""],
    critic_lambda: float,
    spec: Spec,
) -> Labelled:
    """What stretches of steps were worth, over `scale`.

    Args:
      drawn: axes stretch, time.
      state: of the run's value critic.
      moments: of observations.
      scale: that advantages are divided by.
      critic_lambda: see `ops.gae`. Nothing is known of what follows a stretch but its value.
      spec: value critic, discount and actions.
    """
    obs = normalize(drawn.obs, moments)
    value = spec.critic.value(state, obs, drawn.elapsed.astype(jnp.int32))
    final_value = spec.critic.value(state, normalize(drawn.final_obs, moments), drawn.elapsed.astype(jnp.int32) + 1)
    terminated = drawn.terminated > 0
    # The next row is the next step of the episode if it is one step further into it.
    goes_on = drawn.elapsed[:, 1:] == drawn.elapsed[:, :-1] + 1
    cut = ~terminated & jnp.concatenate([~goes_on, jnp.ones_like(goes_on[:, :1])], axis=1)
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
    )
    return Labelled(obs, encoded(_as_taken(drawn.action, spec), spec.actions), advantage.T / scale, drawn.weight)


def _as_taken(action: Float[Array, "... action"], spec: Spec) -> Array:
    """The buffer holds real numbers; choices are whole ones."""
    return action.astype(jnp.int32) if spec.actions.counts else action
