"""An environment whose functions are traced once, however many programs are made with it."""

from __future__ import annotations

from typing import Any

import jax

from jaxtrpo.envs.base import Environment


class TracedOnce:
    """The same environment (see `jaxtrpo.envs.base.Environment`), for whoever makes many programs with it."""

    def __init__(self, env: Environment):
        self._env, self.name, self.episode_length = env, env.name, env.episode_length
        self.observation_size, self.action_size = env.observation_size, env.action_size
        self.action_low, self.action_high = env.action_low, env.action_high
        self.reset = jax.jit(env.reset, static_argnums=1)
        self.step = jax.jit(env.step)

    def __getattr__(self, name: str) -> Any:
        """What not every environment has."""
        return getattr(self._env, name)
