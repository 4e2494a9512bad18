"""Environments of which a policy sees only some numbers, such as positions without velocities."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np

import jaxtrpo
from common.positions import POSITIONS, positions_of
from jaxtrpo.envs.base import Environment, EnvState

NATIVE = ("Hopper-v5", "Walker2d-v5", "HalfCheetah-v5")  # stepped inside of compiled code


class Hidden:
    """Wraps an environment so that observations consist of chosen numbers (see `jaxtrpo.envs.base.Environment`)."""

    def __init__(self, env: Environment, keep: Sequence[int]):
        """Wraps `env`; observations become its numbers at the indices `keep`."""
        self.env, self._keep = env, np.asarray(keep)
        self.name, self.observation_size, self.action_size = f"{env.name} (positions)", len(keep), env.action_size
        self.action_low, self.action_high, self.episode_length = env.action_low, env.action_high, env.episode_length
        for optional in ("action_counts", "action_shape", "is_program"):
            if hasattr(env, optional):
                setattr(self, optional, getattr(env, optional))

    def reset(self, key: Any, num_envs: int) -> EnvState:
        """Starts `num_envs` episodes."""
        return self._shown(self.env.reset(key, num_envs))

    def step(self, state: EnvState, action: Any) -> EnvState:
        """Steps all environments."""
        return self._shown(self.env.step(state.physics._replace(elapsed=state.elapsed), action))

    def _shown(self, whole: EnvState) -> EnvState:
        shown = jnp.asarray(whole.obs)[:, self._keep], jnp.asarray(whole.final_obs)[:, self._keep]
        return whole._replace(physics=whole, obs=shown[0], final_obs=shown[1])


def positions_only(name: str) -> Hidden | Callable[[], gymnasium.Env]:
    """Returns an environment without its velocities, as `train` takes it."""
    if name in NATIVE:
        return Hidden(jaxtrpo.make_env(name), list(POSITIONS[name]))
    return functools.partial(positions_of, name)
