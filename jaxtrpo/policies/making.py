"""From the settings of a policy to the policy that acts in an environment."""

from __future__ import annotations

from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.envs.observation_space import Observed, as_space
from jaxtrpo.policies.frames import stacking_policy
from jaxtrpo.policies.masking import masked_policy
from jaxtrpo.policies.networks import Policy, PolicyMaker


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
