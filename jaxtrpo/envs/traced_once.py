"""An environment whose functions are traced only once, even if several programs use it."""

from __future__ import annotations

from typing import Any

import jax

from jaxtrpo.envs.base import Environment


class TracedOnce:
    """Wraps an environment so that programs compiled with it share one trace of `reset` and one of `step`."""

    def __init__(self, env: Environment):
        self._env, self.name, self.episode_length = env, env.name, env.episode_length
        self.observation_size, self.action_size = env.observation_size, env.action_size
        self.action_low, self.action_high = env.action_low, env.action_high
        self.reset = jax.jit(env.reset, static_argnums=1)
        self.step = jax.jit(env.step)

    def __getattr__(self, name: str) -> Any:
        """Forwards optional attributes."""
        return getattr(self._env, name)
