"""Advantages and returns by recursion backwards in time."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Tail(NamedTuple):
    """What the steps after the last one of a piece amount to; carried backwards from piece to piece."""

    value: Float[Array, " env"]  # V of the state the piece leads to
    accumulated: Float[Array, " env"]  # sum of discounted future errors, less what explains them


def empty_tail(num_envs: int) -> Tail:
    """Nothing is known to follow: every last step must then be `cut`."""
    return Tail(jnp.zeros(num_envs), jnp.zeros(num_envs))


def generalized_advantages(
    reward: Float[Array, "time env"],
    value: Float[Array, "time env"],
    final_value: Float[Array, "time env"],
    terminated: Bool[Array, "time env"],
    cut: Bool[Array, "time env"],
    valid: Bool[Array, "time env"],
    tail: Tail,
    *,
    discount: float,
    gae_lambda: float,
    action_advantage: Float[Array, "time env"] | None = None,
) -> tuple[Float[Array, "time env"], Tail]:
    """Generalised advantage estimation (Schulman et al. 2016, equation 16).

        delta_t = r_t + discount * V(s_{t+1}) - V(s_t)
        A_t     = delta_t + discount * gae_lambda * (A_{t+1} - C_{t+1})

    C is what is known of the worth of the action that was taken; without it, 0. Where its mean over the actions of a
    policy is 0, what the later actions happened to be is taken out of A_t, which then is of that policy and not of the
    one that acted, and has less noise (Pan & Schoelkopf 2024, off-policy direct advantage estimation).

    After a step that terminated, V(s_{t+1}) = 0. After one that was cut (truncated by a time limit, or the last that
    was collected), V(s_{t+1}) = `final_value`. After both A_{t+1} = 0, so that nothing leaks across a reset. With
    gae_lambda = 1, A_t + V(s_t) is the discounted Monte Carlo return.

    Args:
      reward: r_t.
      value: V(s_t).
      final_value: V of what the step led to, before any reset; read only where `cut`.
      terminated: nothing follows the step.
      cut: something would have followed, but is not in the data.
      valid: False where the step is no experience (its simulation broke): it gets advantage 0, and the step before it
        bootstraps from its value.
      tail: what follows the last step.
      discount: per environment step.
      gae_lambda: 0 is one-step, 1 is Monte Carlo.
      action_advantage: C_t.

    Returns:
      A_t, and the tail for the piece before this one.
    """

    def backwards(tail: Tail, step: tuple[Array, ...]) -> tuple[Tail, Float[Array, " env"]]:
        reward, value, final_value, terminated, cut, valid, *known = step
        next_value = jnp.where(terminated, 0.0, jnp.where(cut, final_value, tail.value))
        delta = reward + discount * next_value - value
        future = jnp.where(terminated | cut, 0.0, tail.accumulated)
        advantage = jnp.where(valid, delta + discount * gae_lambda * future, 0.0)
        left = jnp.where(valid, advantage - known[0], 0.0) if known else advantage
        return Tail(value, left), advantage

    steps = (reward, value, final_value, terminated, cut, valid)
    if action_advantage is not None:
        steps = (*steps, action_advantage)
    tail, advantage = jax.lax.scan(backwards, tail, steps, reverse=True)
    return advantage, tail
