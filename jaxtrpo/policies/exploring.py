"""Policies that act differently while they collect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, PyTree

from jaxtrpo.policies.distributions import Distribution
from jaxtrpo.policies.networks import Policy

# (distribution of the policy, traced settings) -> distribution that actions are drawn from
Explore = Callable[[Distribution, dict[str, Array]], Distribution]


class Exploring(NamedTuple):
    """Parameters of an exploring policy."""

    policy: PyTree
    hyperparameters: dict[str, Array]


def exploring(policy: Policy, explore: Explore) -> Policy:
    """Returns a policy without memory whose distributions are changed; its parameters are `Exploring`."""

    def apply(params: Exploring, inputs: Any) -> Distribution:
        return explore(policy.apply(params.policy, inputs), params.hyperparameters)

    return policy._replace(apply=apply, apply_for_products=None, value_head=None)
