"""Atari games with the usual preprocessing (Machado et al. 2018; Mnih et al. 2015)."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Clipped(gymnasium.RewardWrapper):
    """Rewards by their sign."""

    def reward(self, reward: Any) -> float:
        """Returns -1, 0 or 1."""
        return float(np.sign(reward))


def atari(name: str, *, clipped: bool = True) -> gymnasium.Env:
    """Makes a game whose observation is one grey frame of 84 x 84 pixels, with four frames a step.

    As in training by others, a lost life ends an episode, up to 30 steps without action begin one, and rewards are
    clipped.
    """
    import ale_py

    gymnasium.register_envs(ale_py)
    env = gymnasium.make(name, frameskip=1)
    env = gymnasium.wrappers.AtariPreprocessing(env, terminal_on_life_loss=clipped)
    return Clipped(env) if clipped else env
