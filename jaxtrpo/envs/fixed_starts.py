"""An environment whose episodes always begin in one of a few fixed initial states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree, UInt32

from jaxtrpo.config.checks import require_whole
from jaxtrpo.envs.abilities import Renderable, has, saves_state
from jaxtrpo.envs.base import Environment, EnvState, choose_rows, env_keys


class RepeatedState(NamedTuple):
    """`EnvState.physics` of a `Repeated` environment."""

    now: PyTree  # current physics of the wrapped environment
    first: PyTree  # initial physics of every episode of this row
    first_obs: PyTree  # as `EnvState.obs`
    first_mask: Bool[Array, "env choices"] | tuple[()]


# Abilities that do not depend on where episodes begin (see `jaxtrpo.envs.abilities`).
FORWARDED = (
    "action_counts", "action_shape", "is_program", "masks_actions", "may_terminate", "observation_space",
    "observations", "seconds_per_step", "solves_equations",
)  # fmt: skip


class Repeated:
    """Wraps an environment so that it has only a few initial states (see `jaxtrpo.envs.base.Environment`).

    Neighbouring environments share an initial state: of n environments, the i-th starts in state
    i * conditions // n. The initial states depend only on the key passed to `reset`. If they contain the random numbers
    of the following steps, as those of gymnax do, these are repeated, too.
    """

    def __init__(self, env: Environment, conditions: int, episode_length: int | None = None):
        """Wraps `env`.

        Args:
          env: environment whose states can be saved (`saves_state` is not False).
          conditions: number of initial states.
          episode_length: time limit in steps; ignored if longer than the environment's own.

        Raises:
          ValueError: the states of `env` cannot be saved, or a number is not a whole one of at least 1.
        """
        if not saves_state(env):
            raise ValueError(
                f"{env.name}: fixed initial states need an environment whose state can be saved, such as Hopper-v5"
            )
        require_whole(1, conditions=conditions)
        if episode_length is not None:
            require_whole(1, episode_length=episode_length)
        self.env, self.conditions = env, conditions
        self.name, self.observation_size, self.action_size = env.name, env.observation_size, env.action_size
        self.action_low, self.action_high = env.action_low, env.action_high
        self.episode_length = min(episode_length or env.episode_length, env.episode_length)
        for optional in FORWARDED:
            if hasattr(env, optional):
                setattr(self, optional, getattr(env, optional))
        if has(env, Renderable):
            self.render = self._render

    def reset(self, key: PRNGKeyArray | UInt32[Array, "2"], num_envs: int) -> EnvState:
        """Starts `num_envs` episodes."""
        condition = jnp.arange(num_envs) * self.conditions // num_envs
        state = jax.tree.map(lambda leaf: leaf[condition], self.env.reset(key, self.conditions))
        physics = RepeatedState(state.physics, state.physics, state.obs, state.mask)
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
        legal = choose_rows(mask, physics.first_mask, state.mask)
        return state._replace(physics=physics._replace(now=now), obs=obs, mask=legal)

    def _render(self, physics: Iterable[RepeatedState], width: int, height: int) -> Iterator[np.ndarray]:
        env: Any = self.env
        return env.render((each.now for each in physics), width, height)
