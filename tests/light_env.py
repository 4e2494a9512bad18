"""An environment that shows an image, in which a lit pixel tells the action."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxtrpo.envs.base import EnvState, Transition, advance, start
from jaxtrpo.envs.observation_space import Leaf, ObservationSpace

SIDE, CHOICES = 6, 4
CORNERS = ((1, 1), (1, 4), (4, 1), (4, 4))


class Lit(NamedTuple):
    corner: jax.Array  # int32 [env]: which corner is lit
    key: jax.Array  # uint32 [env, 2]
    step: jax.Array  # int32 [env]


class LightEnvironment:
    """A corner of an image is lit, and the action must name it; the reward is 1 if it does.

    See `jaxtrpo.envs.base.Environment`.

    Args:
      with_vector: also observe two numbers, the step of the episode and a constant, beside the image.
      continuous: the action is a number, right if its sign says whether the light is in the lower half.
      masks_actions: one of the wrong choices is illegal.
      episode_length: steps of an episode, which are truncated.
    """

    name = "light"
    action_size = 1
    is_program = True

    def __init__(
        self,
        with_vector: bool = False,
        continuous: bool = False,
        masks_actions: bool = False,
        episode_length: int = 8,
        dtype: str = "uint8",
    ):
        self.continuous, self.masks_actions, self.episode_length = continuous, masks_actions, episode_length
        leaves = [Leaf("image", (SIDE, SIDE, 2), dtype)]
        if with_vector:
            leaves.append(Leaf("vector", (2,), "float32"))
        self.with_vector, self.dtype = with_vector, dtype
        self.observation_space = ObservationSpace(tuple(leaves))
        self.observation_size = self.observation_space.size
        self.action_low, self.action_high = np.array([-1.0]), np.array([1.0])
        if not continuous:
            self.action_counts = (CHOICES,)
            self.action_low, self.action_high = np.array([0]), np.array([CHOICES - 1])

    def reset(self, key, num_envs: int) -> EnvState:
        blank = Lit(
            jnp.zeros(num_envs, jnp.int32), jnp.zeros((num_envs, 2), jnp.uint32), jnp.zeros(num_envs, jnp.int32)
        )
        return self._with_mask(start(key, num_envs, self._reset_rows, blank))

    def step(self, state: EnvState, action) -> EnvState:
        now: Lit = state.physics
        keys = jax.vmap(jax.random.split)(now.key)
        after = Lit(self._draw(keys[:, 0]), keys[:, 1], now.step + 1)
        right = (action[:, 0] > 0) == (now.corner >= 2) if self.continuous else action[:, 0] == now.corner
        moved = Transition(
            physics=after,
            obs=self._obs(after),
            reward=right.astype(jnp.float32),
            terminated=jnp.zeros_like(now.corner, bool),
            finite=jnp.ones_like(now.corner, bool),
        )
        return self._with_mask(advance(state, moved, self._reset_rows, self.episode_length))

    def _draw(self, keys):
        return jax.vmap(lambda key: jax.random.randint(key, (), 0, CHOICES))(keys)

    def _reset_rows(self, keys, mask, physics):
        both = jax.vmap(jax.random.split)(keys)
        fresh = Lit(self._draw(both[:, 0]), both[:, 1], jnp.zeros(len(keys), jnp.int32))
        choose = lambda new, old: jnp.where(mask.reshape(-1, *[1] * (new.ndim - 1)), new, old)  # noqa: E731
        physics = jax.tree.map(choose, fresh, physics)
        return physics, self._obs(physics)

    def _obs(self, physics: Lit):
        corners = np.zeros((CHOICES, SIDE, SIDE, 2), self.dtype)
        for index, (row, column) in enumerate(CORNERS):
            corners[index, row, column, 0] = 255 if self.dtype == "uint8" else 1
        obs = {"image": jnp.asarray(corners)[physics.corner]}
        if self.with_vector:
            obs["vector"] = jnp.stack([100.0 * physics.step, jnp.full(physics.step.shape, 7.0)], axis=-1)
        return obs

    def _with_mask(self, state: EnvState) -> EnvState:
        if not self.masks_actions:
            return state
        illegal = jax.nn.one_hot((state.physics.corner + 1) % CHOICES, CHOICES)
        return state._replace(mask=illegal < 0.5)
