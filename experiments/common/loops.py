"""Steps of an environment alone, in a compiled loop of random actions."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxtrpo.envs.base import Environment, EnvState


class Loop(NamedTuple):
    """Steps of an environment in a compiled loop."""

    run: Any
    state: EnvState
    steps: int  # of all environments
    compile_seconds: float

    def steps_per_second(self) -> float:
        begin = time.perf_counter()
        jax.block_until_ready(self.run(self.state))
        return self.steps / (time.perf_counter() - begin)


def loop(env: Environment, num_envs: int, length: int) -> Loop:
    """Compiles `length` steps of each of `num_envs` environments."""
    rng = np.random.default_rng(0)
    actions = rng.uniform(env.action_low, env.action_high, (length, num_envs, env.action_size)).astype(np.float32)

    def steps(state: EnvState) -> EnvState:
        return jax.lax.scan(lambda s, a: (env.step(s, a), None), state, actions)[0]

    state = jax.jit(env.reset, static_argnums=1)(jax.random.PRNGKey(0), num_envs)
    begin = time.perf_counter()
    run = jax.jit(steps).lower(state).compile()
    return Loop(run, state, num_envs * length, time.perf_counter() - begin)
