"""An environment whose functions are traced only once, even if several programs use it."""

from __future__ import annotations

from typing import Any

import jax

from jaxtrpo.envs.base import Environment
from jaxtrpo.envs.fixed_starts import FORWARDED


class TracedOnce:
    """Wraps an environment so that programs compiled with it share one trace of `reset` and one of `step`."""

    def __init__(self, env: Environment):
        self._env, self.name, self.episode_length = env, env.name, env.episode_length
        self.observation_size, self.action_size = env.observation_size, env.action_size
        self.action_low, self.action_high = env.action_low, env.action_high
        self.reset = jax.jit(env.reset, static_argnums=1)
        self.step = jax.jit(env.step)
        for optional in FORWARDED:  # from Python 3.12 on, protocols do not see what `__getattr__` returns
            if hasattr(env, optional):
                setattr(self, optional, getattr(env, optional))

    def __getattr__(self, name: str) -> Any:
        """Forwards optional attributes."""
        return getattr(self._env, name)
