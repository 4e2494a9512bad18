"""An environment whose episodes always begin in one of a few fixed initial states."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, UInt32

from jaxtrpo.envs.abilities import saves_state
from jaxtrpo.envs.base import Environment, EnvState, choose_rows, env_keys


class RepeatedState(NamedTuple):
    """`EnvState.physics` of a `Repeated` environment."""

    now: PyTree  # current physics of the wrapped environment
    first: PyTree  # initial physics of every episode of this row
    first_obs: Float[Array, "env obs"]


class Repeated:
    """Wraps an environment so that it has only a few initial states (see `jaxtrpo.envs.base.Environment`).

    Neighbouring environments share an initial state: of n environments, the i-th starts in state
    i * conditions // n. The initial states depend only on the key passed to `reset`.
    """

    def __init__(self, env: Environment, conditions: int, episode_length: int | None = None):
        """Wraps `env`.

        Args:
          env: environment whose states can be saved (`saves_state` is not False).
          conditions: number of initial states.
          episode_length: time limit in steps; ignored if longer than the environment's own.

        Raises:
          ValueError: the states of `env` cannot be saved, or `conditions` is less than 1.
        """
        if not saves_state(env):
            raise ValueError(
                f"{env.name}: fixed initial states need an environment whose state can be saved, such as Hopper-v5"
            )
        if conditions < 1:
            raise ValueError(f"conditions={conditions} must be at least 1")
        self.env, self.conditions = env, conditions
        self.name, self.observation_size, self.action_size = env.name, env.observation_size, env.action_size
        self.action_low, self.action_high = env.action_low, env.action_high
        self.episode_length = min(episode_length or env.episode_length, env.episode_length)
        for optional in ("action_counts", "action_shape", "observations", "is_program", "solves_equations"):
            if hasattr(env, optional):
                setattr(self, optional, getattr(env, optional))

    def reset(self, key: PRNGKeyArray | UInt32[Array, "2"], num_envs: int) -> EnvState:
        """Starts `num_envs` episodes."""
        condition = jnp.arange(num_envs) * self.conditions // num_envs
        state = jax.tree.map(lambda leaf: leaf[condition], self.env.reset(key, self.conditions))
        physics = RepeatedState(state.physics, state.physics, state.obs)
        return state._replace(physics=physics, key=env_keys(key, num_envs))

    def step(self, state: EnvState, action: Float[Array, "env action"]) -> EnvState:
        """Applies one action to each environment."""
        physics: RepeatedState = state.physics
        last = state.elapsed + 1 >= self.episode_length
        elapsed = jnp.where(last, self.env.episode_length - 1, state.elapsed)
        after = self.env.step(state._replace(physics=physics.now, elapsed=elapsed), action)
        after = after._replace(physics=physics._replace(now=after.physics))
        return self._restart(after, after.terminated | after.truncated)

    def again(self, state: EnvState) -> EnvState:
        """Restarts every episode from its initial state, including those under way."""
        begun = self._restart(state, jnp.ones_like(state.terminated))
        return begun._replace(elapsed=jnp.zeros_like(state.elapsed))

    def _restart(self, state: EnvState, mask: Array) -> EnvState:
        physics: RepeatedState = state.physics
        now = choose_rows(mask, physics.first, physics.now)
        obs = choose_rows(mask, physics.first_obs, state.obs)
        return state._replace(physics=physics._replace(now=now), obs=obs)
