"""From the settings of a policy to the policy that acts in an environment."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.envs.observation_space import Observed, as_space
from jaxtrpo.policies.distributions import Distribution
from jaxtrpo.policies.frames import stacking_policy
from jaxtrpo.policies.masking import input_of, masked_policy
from jaxtrpo.policies.networks import Policy, PolicyMaker
from jaxtrpo.policies.recurrence import initial_carry


def policy_for(maker: PolicyMaker, observed: Observed, actions: ActionSpace, *, masked: bool) -> Policy:
    """Returns a policy, which stacks frames if there are several, and takes masks if actions are masked.

    Raises:
      ValueError: the network does not fit the environment.
    """
    policy = maker.make(observed, actions)
    space = as_space(observed)
    if space.frames > 1:
        policy = stacking_policy(policy, space)
    return masked_policy(policy) if masked else policy


def distribution_of(policy: Policy, observed: Observed, actions: ActionSpace) -> Distribution:
    """Returns the distribution that a policy returns for one state; its leaves are shapes."""
    obs = jax.tree.map(jnp.asarray, as_space(observed).zeros(1))
    inputs = input_of(policy, obs, jnp.ones((1, sum(actions.counts)), bool))

    def first_step(key: jax.Array) -> Distribution:
        return policy.step(policy.init(key), initial_carry(policy.recurrence, 1), inputs, jnp.ones(1, bool))[0]

    return jax.eval_shape(first_step, jax.random.PRNGKey(0))
