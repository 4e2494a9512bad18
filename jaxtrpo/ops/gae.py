"""Generalised advantage estimation, piece by piece and backwards in time."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Tail(NamedTuple):
    """Summary of the steps that follow a piece of a trajectory, carried backwards from piece to piece."""

    value: Float[Array, " env"]  # V of the state that the piece leads to
    accumulated: Float[Array, " env"]  # A - C of the step that follows the piece


def empty_tail(num_envs: int) -> Tail:
    """Returns a tail for the end of the data, where every last step must be terminated or `cut`."""
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
    """Computes generalised advantages (Schulman et al. 2016, equation 16).

        delta_t = r_t + discount * V(s_{t+1}) - V(s_t)
        A_t     = delta_t + discount * gae_lambda * (A_{t+1} - C_{t+1})

    C is a prediction of the advantage of the action taken; 0 if not given. If the mean of C over the actions of some
    policy is 0, subtracting it removes the effect of the later actions that happened to be taken: A_t is then the
    advantage under that policy, not under the one that acted, and has less variance (Pan & Schoelkopf 2024, off-policy
    direct advantage estimation).

    After a terminated step, V(s_{t+1}) = 0. After a cut (truncation by a time limit, or the last collected step),
    V(s_{t+1}) = `final_value`. In both cases A_{t+1} = 0, so nothing leaks across a reset. With gae_lambda = 1,
    A_t + V(s_t) is the discounted Monte Carlo return.

    Args:
      reward: r_t.
      value: V(s_t).
      final_value: V of the state that the step led to, before any reset; read only where `cut`.
      terminated: whether the episode terminated with the step.
      cut: whether the trajectory continues beyond the step but the data does not.
      valid: False if the simulation of the step broke. Its advantage is 0, and the step before it bootstraps from its
        value.
      tail: summary of what follows the last step.
      discount: discount factor per environment step.
      gae_lambda: 0 gives one-step advantages, 1 Monte Carlo advantages.
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
