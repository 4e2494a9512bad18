"""An environment in which most moves are illegal, and taking one of them is seen."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxtrpo.envs.base import EnvState, Transition, advance, start

MOVES = 10


class Door(NamedTuple):
    legal: jax.Array  # [env, 2]: two moves, of which the first is rewarded
    step: jax.Array


class DoorsEnvironment:
    """Two of ten moves are legal; the reward is 1 for the one that is observed, 0 for the other, -1 if illegal.

    The observation is one-hot for the rewarded move. An episode has five steps. See `jaxtrpo.envs.base.Environment`.
    """

    name = "doors"
    observation_size, action_size = MOVES, 1
    action_low, action_high = np.array([0]), np.array([MOVES - 1])
    action_counts = (MOVES,)
    episode_length = 5
    is_program = True

    def __init__(self, masks_actions: bool = True):
        self.masks_actions = masks_actions

    def reset(self, key, num_envs: int) -> EnvState:
        blank = Door(jnp.zeros((num_envs, 2), jnp.int32), jnp.zeros(num_envs, jnp.int32))
        return self._with_mask(start(key, num_envs, self._reset_rows, blank))

    def step(self, state: EnvState, action) -> EnvState:
        chosen, (good, other) = action[:, 0], state.physics.legal.T
        moves = (state.physics.legal + jnp.array([3, 3]) + state.physics.step[:, None]) % MOVES
        after = Door(moves, state.physics.step + 1)
        moved = Transition(
            physics=after,
            obs=self._obs(after),
            reward=jnp.where(chosen == good, 1.0, jnp.where(chosen == other, 0.0, -1.0)),
            terminated=jnp.zeros_like(good, bool),
            finite=jnp.ones_like(good, bool),
        )
        return self._with_mask(advance(state, moved, self._reset_rows, self.episode_length))

    def _reset_rows(self, keys, mask, physics):
        first = jax.vmap(lambda key: jax.random.randint(key, (), 0, MOVES))(keys)
        fresh = Door(jnp.stack([first, (first + 3) % MOVES], axis=-1), jnp.zeros_like(first))
        physics = Door(jnp.where(mask[:, None], fresh.legal, physics.legal), jnp.where(mask, fresh.step, physics.step))
        return physics, self._obs(physics)

    def _obs(self, physics):
        return jax.nn.one_hot(physics.legal[:, 0], MOVES)

    def _with_mask(self, state: EnvState) -> EnvState:
        if not self.masks_actions:
            return state
        return state._replace(mask=jax.nn.one_hot(state.physics.legal, MOVES).sum(axis=1) > 0)
