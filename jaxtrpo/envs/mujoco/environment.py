"""Makes an environment of a MuJoCo task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from jaxtrpo.envs import base
from jaxtrpo.envs.mujoco.film import render
from jaxtrpo.envs.mujoco.model import compile_model, controls, first_states, observation_size, observe, outcome
from jaxtrpo.envs.mujoco.physics import Physics
from jaxtrpo.envs.mujoco.task import Fields, Task


class MujocoEnvironment:
    """A `Task` on the C engine (see `jaxtrpo.envs.base.Environment`)."""

    def __init__(self, task: Task):
        """Compiles the model and tries the task's functions once.

        Raises:
          ValueError: the MJCF is not valid, or a setting of the task does not fit the model.
        """
        self.task, self.name, self.episode_length = task, task.name, task.episode_length
        self.model = compile_model(task)
        self.physics = Physics(self.model, task.frame_skip, task.fields, task.changes)
        self.action_low, self.action_high, *_ = controls(self.name, self.model)
        self.action_size = int(self.model.nu)
        self.observation_size = observation_size(task, self.model, self.physics.layout.shapes)

    def reset(self, key: UInt32[Array, "2"], num_envs: int) -> base.EnvState:
        """Starts `num_envs` episodes."""
        return base.start(key, num_envs, self._reset_rows, self.physics.blank(num_envs))

    def step(self, state: base.EnvState, action: Float[Array, "env action"]) -> base.EnvState:
        """Applies one action (in the simulator's units) to each environment."""
        bits, rows = self.physics.step(state.physics, action)
        means = outcome(self.task, self.model, self._fields(rows), action)
        finite = jnp.all(jnp.isfinite(rows), axis=-1)
        moved = base.Transition(bits, means.obs, means.reward, means.terminated, finite)
        return base.advance(state, moved, self._reset_rows, self.episode_length)

    @property
    def seconds_per_step(self) -> float:
        """Simulated time between two actions."""
        return float(self.model.opt.timestep * self.task.frame_skip)

    def render(self, physics: Iterable[np.ndarray], width: int, height: int) -> Iterator[np.ndarray]:
        """A picture [height, width, 3] of each `physics` of one environment, on the host."""
        return render(self.model, self.physics.layout, physics, width, height)

    def _reset_rows(self, keys, mask, bits):
        bits, rows = self.physics.reset(bits, mask, *first_states(self.task, self.model, keys))
        return bits, observe(self.task, self.model, self._fields(rows))

    def _fields(self, rows: Float[Array, "env fields"]) -> Fields:
        """Names the columns; of a batch, to be mapped over."""
        data, change = {}, {}
        for name, is_change, where in self.physics.layout.slices():
            value = rows[:, where].reshape(len(rows), *self.physics.layout.shapes[name])
            (change if is_change else data)[name] = value
        return Fields(data, change=Fields(change))
