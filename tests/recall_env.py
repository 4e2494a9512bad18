"""An environment that only a policy with memory can solve."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxtrpo.envs.base import EnvState, Transition, advance, start


class Recall(NamedTuple):
    cue: jax.Array
    length: jax.Array
    step: jax.Array


class RecallEnvironment:
    """Shows a cue of 0 or 1 in the first step of an episode, and rewards the choice of it in the last, 2 to 5 steps on.

    Observations are (the cue as -1 or 1, else 0; whether it is the last step). See `jaxtrpo.envs.base.Environment`.
    """

    name = "recall"
    observation_size, action_size = 2, 1
    action_low, action_high = np.array([0]), np.array([1])
    action_counts = (2,)
    episode_length = 100
    is_program = True

    def reset(self, key, num_envs: int) -> EnvState:
        blank = jnp.zeros(num_envs, jnp.int32)
        return start(key, num_envs, self._reset_rows, Recall(blank, blank + 3, blank))

    def step(self, state: EnvState, action) -> EnvState:
        cue, length, step = state.physics
        is_last = step == length - 1
        after = Recall(cue, length, step + 1)
        moved = Transition(
            physics=after,
            obs=self._obs(after),
            reward=jnp.where(is_last & (action[:, 0] == cue), 1.0, 0.0),
            terminated=is_last,
            finite=jnp.ones_like(is_last),
        )
        return advance(state, moved, self._reset_rows, self.episode_length)

    def _reset_rows(self, keys, mask, physics):
        drawn = jax.vmap(lambda key: jax.random.randint(key, (2,), 0, jnp.array([2, 4])))(keys)
        fresh = Recall(drawn[:, 0], 3 + drawn[:, 1], jnp.zeros_like(physics.step))
        physics = jax.tree.map(lambda new, old: jnp.where(mask, new, old), fresh, physics)
        return physics, self._obs(physics)

    def _obs(self, physics):
        shown = jnp.where(physics.step == 0, 2 * physics.cue - 1, 0)
        return jnp.stack([shown, physics.step == physics.length - 1], axis=-1).astype(jnp.float32)
