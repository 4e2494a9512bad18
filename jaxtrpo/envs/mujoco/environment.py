"""Environments on MuJoCo's C engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from jaxtrpo.envs import base
from jaxtrpo.envs.mujoco.engine import MujocoEngine
from jaxtrpo.envs.mujoco.model import (
    compile_model,
    control_space,
    evaluate_step,
    initial_states,
    may_terminate,
    observation_size,
    observe,
)
from jaxtrpo.envs.mujoco.rendering import render
from jaxtrpo.envs.mujoco.task import Fields, Task


class MujocoEnvironment:
    """A `Task` on MuJoCo's C engine (see `jaxtrpo.envs.base.Environment`)."""

    def __init__(self, task: Task):
        """Compiles the model and traces the task's functions once.

        Raises:
          ValueError: the MJCF is invalid, or a setting or function of the task does not fit the model.
        """
        self.model = compile_model(task)
        self.task, self.name, self.episode_length = task, task.name, task.episode_length
        self.engine = MujocoEngine(self.model, task.frame_skip, task.fields, task.changes)
        self.action_low, self.action_high, *_ = control_space(self.name, self.model)
        self.action_size = int(self.model.nu)
        self.observation_size = observation_size(task, self.model, self.engine.layout.shapes)
        self.may_terminate = may_terminate(task, self.model, self.engine.layout.shapes)

    def reset(self, key: UInt32[Array, "2"], num_envs: int) -> base.EnvState:
        """Starts `num_envs` episodes."""
        return base.start(key, num_envs, self._reset_rows, self.engine.blank(num_envs))

    def step(self, state: base.EnvState, action: Float[Array, "env action"]) -> base.EnvState:
        """Applies one action, in the simulator's units, to each environment."""
        bits, rows = self.engine.step(state.physics, action)
        outcome = evaluate_step(self.task, self.model, self._fields(rows), action)
        finite = jnp.all(jnp.isfinite(rows), axis=-1)
        moved = base.Transition(bits, outcome.obs, outcome.reward, outcome.terminated, finite)
        return base.advance(state, moved, self._reset_rows, self.episode_length)

    @property
    def seconds_per_step(self) -> float:
        """Simulated time between two actions."""
        return float(self.model.opt.timestep * self.task.frame_skip)

    def render(self, physics: Iterable[np.ndarray], width: int, height: int) -> Iterator[np.ndarray]:
        """Renders a frame [height, width, 3] for each `physics` of one environment, on the host."""
        return render(self.model, self.engine.layout, physics, width, height)

    def _reset_rows(self, keys, mask, bits):
        bits, rows = self.engine.reset(bits, mask, *initial_states(self.task, self.model, keys))
        return bits, observe(self.task, self.model, self._fields(rows))

    def _fields(self, rows: Float[Array, "env fields"]) -> Fields:
        """Splits a batch of field rows into named fields."""
        data, change = {}, {}
        for name, is_change, columns in self.engine.layout.slices():
            value = rows[:, columns].reshape(len(rows), *self.engine.layout.shapes[name])
            (change if is_change else data)[name] = value
        return Fields(data, change=Fields(change))
