"""Values that the network of a policy predicts beside its distributions: one torso for actor and critic."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxtrpo.ops.moments import Moments
from jaxtrpo.policies.heads import in_last_layer
from jaxtrpo.policies.recurrence import Recurrence, Sequences, single_step

if TYPE_CHECKING:
    from jaxtrpo.policies.distributions import Distribution
    from jaxtrpo.policies.networks import Policy


SHARED = "shared"  # name of the critic that is a value head


class ValueHead(NamedTuple):
    """Functions of a network that predicts (return - mean) / std with the last output of its last layer."""

    # (parameters, input of the policy) -> distributions and values
    joint: Callable[[PyTree, Any], tuple[Distribution, Float[Array, "..."]]]
    # (parameters, normalised observations, or `Sequences` of them) -> values; these do not depend on masks
    value: Callable[[PyTree, Any], Float[Array, "..."]]
    recurrence: Recurrence | None  # of a network with memory; its state are the parameters, its outputs the values


def with_value_head(policy: Policy) -> Policy:
    """Returns a policy with a value head.

    Args:
      policy: result of a network whose head `has_value`: `apply` (and `unroll`, with memory) return distributions and
        values.

    Returns:
      The policy, which predicts 0 at first, like other critics.
    """
    joint, recurrence = cast(Any, policy.apply), policy.recurrence
    return policy._replace(
        init=lambda key: scaled_values(policy.init(key), 0.0, 0.0),
        apply=lambda params, inputs: joint(params, inputs)[0],
        apply_for_products=None,
        recurrence=_one_of_two(recurrence, 0),
        value_head=ValueHead(joint, lambda params, inputs: joint(params, inputs)[1], _one_of_two(recurrence, 1)),
    )


def scaled_values(params: PyTree, scale: Float[Array, ""] | float, shift: Float[Array, ""] | float) -> PyTree:
    """Returns parameters with which a network predicts scale * value + shift; the distributions stay the same."""

    def changed(path: tuple, leaf: Any) -> Any:
        if not in_last_layer(path):
            return leaf
        added = shift if leaf.ndim == 1 else 0.0  # only a bias is a vector
        return jnp.asarray(leaf).at[..., -1].set(leaf[..., -1] * scale + added)

    return jax.tree_util.tree_map_with_path(changed, params)


def in_units_of(params: PyTree, before: Moments, after: Moments) -> PyTree:
    """Returns parameters whose outputs, in units of other moments of the returns, stand for the same values.

    Before the first returns, a network predicts no value that is worth keeping, so its outputs stay the same: 0, which
    from then on stands for the mean return. Otherwise it would look for that mean during a hundred updates
    (experiments/results/benchmark_1m/NOTES.md).
    """
    known = before.count > 0
    scale = jnp.where(known, before.std / after.std, 1.0)
    shift = jnp.where(known, (before.mean - after.mean) / after.std, 0.0)
    return scaled_values(params, scale, shift)


def _one_of_two(recurrence: Recurrence | None, which: int) -> Recurrence | None:
    """Returns the recurrence of one part of the outputs."""
    if recurrence is None:
        return None

    def unroll(params: PyTree, inputs: Sequences) -> tuple[Any, PyTree]:
        outputs, carries = recurrence.unroll(params, inputs)
        return outputs[which], carries

    return recurrence._replace(step=single_step(unroll), unroll=unroll)
