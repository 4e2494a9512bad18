"""Rearranging a batch for networks with memory, which learn from stretches of steps."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jaxtyping import Array, Num, PyTree

from jaxtrpo.algorithms.advantages import Advantages
from jaxtrpo.critics.critic import Targets
from jaxtrpo.policies.masking import input_of
from jaxtrpo.policies.networks import Policy
from jaxtrpo.policies.recurrence import Recurrence, Sequences, in_stretches, num_stretches


def for_policy(
    policy: Policy, action: Num[Array, "segment time env action"], mask: Any, found: Advantages, carry: PyTree
) -> tuple[Array, Advantages]:
    """Returns actions and advantages as the policy learns from them: by stretches if it has memory, and with masks.

    Args:
      policy: policy that learns.
      action: actions taken.
      mask: legal choices, `Steps.mask`.
      found: advantages.
      carry: of the policy at the start of each stretch, `Batch.carries.policy`.
    """
    recurrence = policy.recurrence
    found = found._replace(targets=found.targets._replace(obs=input_of(policy, found.targets.obs, mask)))
    if recurrence is None:
        return action, found
    arrange = functools.partial(in_stretches, bptt_steps=recurrence.bptt_steps)
    targets = targets_in_sequence(recurrence, found.targets, carry)
    return arrange(action), found._replace(advantage=arrange(found.advantage), targets=targets)


def targets_in_sequence(recurrence: Recurrence | None, targets: Targets, carry: PyTree) -> Targets:
    """Returns the targets of a critic: unchanged, or by stretches if it has memory; see `for_policy`."""
    if recurrence is None:
        return targets
    arrange = functools.partial(in_stretches, bptt_steps=recurrence.bptt_steps)
    obs, elapsed, value, weight, first = jax.tree.map(arrange, (*targets[:-1], targets.elapsed == 0))
    obs = Sequences(obs, first, carry)
    steps = targets.num_segments * targets.weight.shape[1]
    return Targets(obs, elapsed, value, weight, num_stretches(steps, recurrence.bptt_steps))
