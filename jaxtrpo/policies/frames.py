"""Frame stacks: networks that see the last few observations of an episode together.

Such a network has a memory, the observations before the newest. A batch therefore holds each observation once, and
those before each stretch of steps; stacks are made when the network is applied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from jaxtrpo.envs.observation_space import ObservationSpace
from jaxtrpo.policies.networks import Policy
from jaxtrpo.policies.recurrence import Recurrence, Sequences
from jaxtrpo.policies.value_head import ValueHead

# Longer stretches hold fewer observations twice, and shorter ones make minibatches more diverse.
STRETCH = 8  # steps


def stacks(inputs: Sequences) -> tuple[PyTree, PyTree]:
    """Makes stacks of consecutive observations; before an episode there is its first observation, repeated.

    Args:
      inputs: observations [time, env, ...], and those before them, [env, frame, ...] from the oldest on.

    Returns:
      Stacks along the last axis, from the oldest on; and all but the oldest observation of each, [time, env, frame,
      ...], which are those before the next step.
    """
    before = jax.tree.leaves(inputs.carry)[0].shape[1]
    source = _sources(inputs.first, before)

    def frames(earlier: Array, now: Array) -> Array:
        joined = jnp.concatenate([jnp.moveaxis(earlier, 1, 0), now])
        env = jnp.arange(now.shape[1])[:, None]
        return joined[source, env]  # [time, env, frame, ...]

    found = jax.tree.map(frames, inputs.carry, inputs.obs)
    return jax.tree.map(lambda leaf: _along_last_axis(leaf, 2), found), jax.tree.map(lambda leaf: leaf[:, :, 1:], found)


def stack(carry: PyTree, obs: PyTree, first: Bool[Array, " env"]) -> tuple[PyTree, PyTree]:
    """Like `stacks`, for a single step, without the axis of time."""

    def frames(earlier: Array, now: Array) -> Array:
        begins = first.reshape(-1, *(1,) * (earlier.ndim - 1))
        return jnp.concatenate([jnp.where(begins, now[:, None], earlier), now[:, None]], axis=1)

    found = jax.tree.map(frames, carry, obs)
    return jax.tree.map(lambda leaf: _along_last_axis(leaf, 1), found), jax.tree.map(lambda leaf: leaf[:, 1:], found)


def _sources(first: Bool[Array, "time env"], before: int) -> Int[Array, "time env frame"]:
    """Returns which observations are in each stack, counted from the oldest one that is carried."""
    time = jnp.arange(before, before + len(first))[:, None]
    begun = jax.lax.cummax(jnp.where(first, time, 0), axis=0)  # the first of the episode; 0: it is older
    return jnp.stack([jnp.maximum(time - lag, begun) for lag in range(before, -1, -1)], axis=-1)


def _along_last_axis(frames: Array, axis: int) -> Array:
    """Merges the axis that counts frames with the last axis: [env, frame, ..., channel] -> [env, ..., number]."""
    moved = jnp.moveaxis(frames, axis, -2)
    return moved.reshape(*moved.shape[:-2], -1)


def stacking(
    apply: Callable[[PyTree, Any], Any], space: ObservationSpace
) -> tuple[Callable[[PyTree, Sequences], Any], Recurrence]:
    """Returns a function of parameters and sequences of single observations, and its recurrence.

    Args:
      apply: function of parameters and stacks.
      space: of single observations, which says how many are stacked.
    """
    frames = space.frames - 1

    def start(num_envs: int) -> PyTree:
        return space.map(lambda leaf: jnp.zeros((num_envs, frames, *leaf.shape), leaf.dtype))

    def unroll(state: PyTree, inputs: Sequences) -> tuple[Any, PyTree]:
        stacked, carries = stacks(inputs)
        return apply(state, stacked), carries

    def step(state: PyTree, carry: PyTree, obs: PyTree, first: Bool[Array, " env"]) -> tuple[Any, PyTree]:
        stacked, carry = stack(carry, obs, first)
        return apply(state, stacked), carry

    return lambda state, inputs: unroll(state, inputs)[0], Recurrence(start, step, unroll, STRETCH)


def stacking_policy(policy: Policy, space: ObservationSpace) -> Policy:
    """Returns a policy that is given single observations; its parameters are those of `policy`, which sees stacks.

    Raises:
      ValueError: the policy has a memory of its own; one sentence.
    """
    if policy.recurrence is not None:
        raise ValueError(
            f"frame_stack={space.frames}: a policy with memory remembers frames by itself; use frame_stack=1, or "
            "another policy"
        )
    apply, recurrence = stacking(policy.apply, space)
    head = policy.value_head
    if head is not None:
        joint, _ = stacking(head.joint, space)
        head = ValueHead(joint, *stacking(head.value, space))
    return policy._replace(apply=apply, apply_for_products=None, recurrence=recurrence, value_head=head)
