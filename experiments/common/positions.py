"""Gymnasium's environments without velocities; this module needs nothing but Gymnasium."""

from __future__ import annotations

from typing import Any

import gymnasium

# Numbers that are positions or angles.
POSITIONS = {
    "CartPole-v1": (0, 2),
    "Pendulum-v1": (0, 1),
    "Hopper-v5": range(5),
    "Walker2d-v5": range(8),
    "HalfCheetah-v5": range(8),
}


def positions_of(name: str) -> gymnasium.Env:
    """Returns an environment that shows only positions and angles."""
    env, keep = gymnasium.make(name), list(POSITIONS[name])
    space: Any = env.observation_space
    seen = gymnasium.spaces.Box(space.low[keep], space.high[keep], dtype=space.dtype)
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs[keep], seen)
