"""Policies that choose among the legal actions only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from jaxtrpo.policies.distributions import Categorical, Distribution
from jaxtrpo.policies.networks import Policy
from jaxtrpo.policies.recurrence import Sequences

ILLEGAL = -1e9  # logit of an illegal choice: its probability is exactly 0 in float32


class Masked(NamedTuple):
    """Observations, and which choices are legal; the input of a policy that is masked."""

    obs: PyTree
    mask: Bool[Array, "... choices"]  # of all coordinates of the action, one after another


def input_of(policy: Policy, obs: PyTree, mask: Any) -> Any:
    """Returns the input of a policy: normalised observations, and the mask if the policy is masked."""
    return Masked(obs, mask) if policy.is_masked else obs


def plain_observations(inputs: Any) -> Any:
    """Returns the observations in the input of any policy."""
    if isinstance(inputs, Sequences):
        return plain_observations(inputs.obs)
    return inputs.obs if isinstance(inputs, Masked) else inputs


def legal(distribution: Distribution, mask: Bool[Array, "... choices"]) -> Categorical:
    """Returns the distribution of the legal choices, which is renormalised (Huang & Ontanon 2022).

    An illegal choice has probability 0 in the old and in the new policy, so it adds nothing to KL or Fisher metric.

    Raises:
      ValueError: the actions are not discrete.
    """
    if not isinstance(distribution, Categorical):
        raise ValueError(f"an action mask needs a Categorical distribution, not {type(distribution).__name__}")
    counts = [logits.shape[-1] for logits in distribution.logits]
    parts = jnp.split(mask, np.cumsum(counts)[:-1], axis=-1)
    return Categorical(
        tuple(jnp.where(part, logits, ILLEGAL) for part, logits in zip(parts, distribution.logits, strict=True))
    )


def masked_policy(policy: Policy) -> Policy:
    """Returns a policy whose inputs are `Masked`, or `Sequences` of them; its parameters are those of `policy`."""
    products, recurrence, head = policy.apply_for_products, policy.recurrence, policy.value_head
    head = None if head is None else head._replace(joint=_masked_joint(head.joint))
    if recurrence is not None:
        unroll = _masked_unroll(recurrence.unroll)
        return policy._replace(
            apply=lambda params, inputs: unroll(params, inputs)[0],
            recurrence=recurrence._replace(step=_masked_step(recurrence.step), unroll=unroll),
            is_masked=True,
            value_head=head,
        )
    return policy._replace(
        apply=_masked_apply(policy.apply),
        apply_for_products=None if products is None else _masked_apply(products),
        is_masked=True,
        value_head=head,
    )


def _masked_apply(apply: Callable[[PyTree, Any], Distribution]) -> Callable[[PyTree, Masked], Categorical]:
    return lambda params, inputs: legal(apply(params, inputs.obs), inputs.mask)


def _masked_joint(joint: Callable[[PyTree, Any], tuple[Distribution, Array]]) -> Callable[..., Any]:
    def masked(params: PyTree, inputs: Any) -> tuple[Categorical, Array]:
        seen, mask = _apart(inputs)
        distribution, value = joint(params, seen)
        return legal(distribution, mask), value

    return masked


def _apart(inputs: Any) -> tuple[Any, Array]:
    """Returns the input of a policy without masks, and the masks."""
    if isinstance(inputs, Sequences):
        return inputs._replace(obs=inputs.obs.obs), inputs.obs.mask
    return inputs.obs, inputs.mask


def _masked_step(step: Callable[..., tuple[Any, PyTree]]) -> Callable[..., tuple[Categorical, PyTree]]:
    def masked(params: PyTree, carry: PyTree, inputs: Masked, first: Array) -> tuple[Categorical, PyTree]:
        distribution, carry = step(params, carry, inputs.obs, first)
        return legal(distribution, inputs.mask), carry

    return masked


def _masked_unroll(unroll: Callable[[PyTree, Sequences], tuple[Any, PyTree]]) -> Callable[..., Any]:
    def masked(params: PyTree, inputs: Sequences) -> tuple[Categorical, PyTree]:
        distribution, carries = unroll(params, inputs._replace(obs=inputs.obs.obs))
        return legal(distribution, inputs.obs.mask), carries

    return masked
