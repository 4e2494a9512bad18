"""Conversion of actions from the units of policies into those of simulators, and into inputs of networks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Num

from jaxtrpo.envs.base import ActionSpace


def encoded(action: Num[Array, "... action"], space: ActionSpace) -> Float[Array, "... feature"]:
    """Encodes an action as input of a network: clipped like in `to_simulator`, in policy units; one-hot if discrete."""
    if space.counts:
        one_hot = [jax.nn.one_hot(action[..., i], count) for i, count in enumerate(space.counts)]
        return jnp.concatenate(one_hot, axis=-1)
    return jnp.clip(action, *space.policy_range())


def encoded_size(space: ActionSpace) -> int:
    """Returns the size of an encoded action."""
    return sum(space.counts) or space.size


def to_simulator(action: Num[Array, "... action"], space: ActionSpace) -> Num[Array, "... action"]:
    """Converts actions from policy units to simulator units, within the simulator's bounds.

    For a coordinate with two bounds, [-1, 1] maps to the range between them, and other values are clipped (`stretch`).
    Without one of the bounds, policy units are the simulator's units, clipped to the other bound, if any. Discrete
    actions are returned unchanged, counted from 0.
    """
    if space.counts:
        return action
    bounded, (low, high) = space.bounded, space.float32_bounds()
    if bounded.all():
        return stretch(action, low, high)
    stretched = stretch(action, np.where(bounded, low, -1), np.where(bounded, high, 1))
    # Finite float32 numbers may overflow in the simulator's dtype.
    clipped = jnp.clip(action, np.maximum(low, -space.largest), np.minimum(high, space.largest))
    return jnp.where(bounded, stretched, clipped)


def stretch(
    action: Float[ArrayLike, "... action"], low: Float[ArrayLike, " action"], high: Float[ArrayLike, " action"]
) -> Float[Array, "... action"]:
    """Clips actions in policy units to [-1, 1] and maps this range to [low, high].

    -1 and 1 give exactly the bounds, and no result is beyond them.

    Args:
      action: actions in policy units.
      low: finite float32 lower bounds, not traced.
      high: upper bounds, likewise.
    """
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)
    centre, half = _centre_and_half(low, high)
    return jnp.clip(centre + half * jnp.clip(action, -1, 1), low, high)


def _centre_and_half(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the centre of a range, and the smallest half width with which float32 arithmetic reaches both bounds."""
    exact_low, exact_high = low.astype(np.float64), high.astype(np.float64)
    centre = ((exact_low + exact_high) / 2).astype(np.float32)
    half = np.maximum(exact_high - centre, centre - exact_low).astype(np.float32)
    while np.any(short := (centre + half < high) | (centre - half > low)):
        half = np.where(short, np.nextafter(half, np.float32(np.inf)), half)
    return centre, half
