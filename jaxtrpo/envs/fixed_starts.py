"""An environment whose episodes begin in a few first states, again and again."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, UInt32

from jaxtrpo.envs.base import Environment, EnvState, choose_rows, env_keys


class Beginning(NamedTuple):
    """`EnvState.physics` of a repeated environment."""

    now: PyTree
    first: PyTree  # as every episode of this row begins
    first_obs: Float[Array, "env obs"]


class Repeated:
    """Another environment that has only a few first states (see `jaxtrpo.envs.base.Environment`).

    Neighbours begin alike: of n environments the i-th has first state i * conditions // n. The first states are those
    that the environment gives the key that it is reset with, so that whoever resets with the same key has the same.
    """

    def __init__(self, env: Environment, conditions: int, episode_length: int | None = None):
        """Checks what can be repeated.

        Args:
          env: whose states are values, so that they can be kept.
          conditions: how many first states.
          episode_length: time limit in steps, if shorter than the environment's own.

        Raises:
          ValueError: one sentence that says what does not fit.
        """
        if not getattr(env, "saves_state", True):
            raise ValueError(
                f"{env.name}: its simulators cannot be put back into a first state, since theirs cannot be saved"
            )
        if conditions < 1:
            raise ValueError(f"conditions={conditions} must be at least 1")
        self.env, self.conditions = env, conditions
        self.name, self.observation_size, self.action_size = env.name, env.observation_size, env.action_size
        self.action_low, self.action_high = env.action_low, env.action_high
        self.episode_length = min(episode_length or env.episode_length, env.episode_length)
        for optional in ("action_counts", "action_shape", "observations", "is_program"):
            if hasattr(env, optional):
                setattr(self, optional, getattr(env, optional))

    def reset(self, key: PRNGKeyArray | UInt32[Array, "2"], num_envs: int) -> EnvState:
        """Starts `num_envs` episodes."""
        which = jnp.arange(num_envs) * self.conditions // num_envs
        state = jax.tree.map(lambda leaf: leaf[which], self.env.reset(key, self.conditions))
        beginning = Beginning(state.physics, state.physics, state.obs)
        return state._replace(physics=beginning, key=env_keys(key, num_envs))

    def step(self, state: EnvState, action: Float[Array, "env action"]) -> EnvState:
        """Applies one action to each environment."""
        beginning: Beginning = state.physics
        last = state.elapsed + 1 >= self.episode_length
        elapsed = jnp.where(last, self.env.episode_length - 1, state.elapsed)
        after = self.env.step(state._replace(physics=beginning.now, elapsed=elapsed), action)
        after = after._replace(physics=beginning._replace(now=after.physics))
        return self._begin(after, after.terminated | after.truncated)

    def again(self, state: EnvState) -> EnvState:
        """All episodes from their beginnings, whatever was going on."""
        begun = self._begin(state, jnp.ones_like(state.terminated))
        return begun._replace(elapsed=jnp.zeros_like(state.elapsed))

    def _begin(self, state: EnvState, mask: Array) -> EnvState:
        beginning: Beginning = state.physics
        now = choose_rows(mask, beginning.first, beginning.now)
        obs = choose_rows(mask, beginning.first_obs, state.obs)
        return state._replace(physics=beginning._replace(now=now), obs=obs)
