"""Environments on MJX, which are JAX programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, UInt32

from jaxtrpo.envs import base
from jaxtrpo.envs.mujoco.layout import make_layout
from jaxtrpo.envs.mujoco.mjx_engine import CARRIED, EngineStep, MjxEngine, State
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


class Simulation(NamedTuple):
    """`EnvState.physics` of an MJX environment: a batch of simulations between two steps."""

    state: State
    before: dict[str, Float[Array, "env ..."]]  # previous values of the fields in `Task.changes`


class MjxEnvironment:
    """A `Task` on MJX, MuJoCo's engine written in JAX (see `jaxtrpo.envs.base.Environment`).

    Model, initial states, observations, rewards and terminations are those of `MujocoEnvironment`; only the engine
    differs. MJX computes in float32, so trajectories diverge from those of the C engine by rounding, and the change of
    a field is a difference of float32 values. MJX has no projected Gauss-Seidel solver (PGS); if the MJCF specifies it,
    Newton's method solves the same convex problem. On a plane, MJX rotates the friction pyramid of a capsule that
    stands steeper than 60 degrees (`plane_capsule` in its `collision_primitive`), so friction on a sliding leg, such as
    Ant's, differs slightly from the C engine.
    """

    is_program = True

    def __init__(self, task: Task, impl: str = "jax"):
        """Compiles the model and traces the task's functions and a step once, without compiling a program.

        Args:
          task: the task.
          impl: implementation of MJX: "jax", or "warp" for MuJoCo Warp, which needs the package warp-lang and is meant
            for NVIDIA GPUs.

        Raises:
          ValueError: the MJCF is invalid, a setting or function of the task does not fit the model, or MJX does not
            support the model.
        """
        self.model = compile_model(task)
        self.task, self.name, self.episode_length = task, f"mjx:{task.name}", task.episode_length
        self.layout = make_layout(self.model, task.fields, task.changes)
        self.action_low, self.action_high, *_ = control_space(self.name, self.model)
        self.action_size = int(self.model.nu)
        self.observation_size = observation_size(task, self.model, self.layout.shapes)
        self.may_terminate = may_terminate(task, self.model, self.layout.shapes)
        try:
            self.engine = MjxEngine(self.model, self.layout.shapes, task.frame_skip, impl)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error

    def reset(self, key: UInt32[Array, "2"], num_envs: int) -> base.EnvState:
        """Starts `num_envs` episodes."""
        return base.start(key, num_envs, self._reset_rows, base.blank(lambda keys: self._start(keys)[0], num_envs))

    def step(self, state: base.EnvState, action: Float[Array, "env action"]) -> base.EnvState:
        """Applies one action, in the simulator's units, to each environment."""
        if action.shape != (len(state.obs), self.action_size):
            raise ValueError(f"actions have shape {action.shape}, expected {(len(state.obs), self.action_size)}")
        before: Simulation = state.physics
        stepped = self.engine.step(before.state, action.astype(jnp.float32))
        physics, data = self._with_changes(stepped, before.before)
        outcome = evaluate_step(self.task, self.model, data, action)
        transition = base.Transition(physics, outcome.obs, outcome.reward, outcome.terminated, stepped.finite)
        return base.advance(state, transition, self._reset_rows, self.episode_length)

    @property
    def seconds_per_step(self) -> float:
        """Simulated time between two actions."""
        return float(self.model.opt.timestep * self.task.frame_skip)

    def render(self, physics: Iterable[Simulation], width: int, height: int) -> Iterator[np.ndarray]:
        """Renders a frame [height, width, 3] for each `physics` of one environment, on the host."""

        def bits(physics: Simulation) -> np.ndarray:  # in the format of the C engine's state rows
            parts = [np.ravel(physics.state[name]) for name in CARRIED if name in physics.state]
            return np.concatenate(parts).astype(np.float64).view(np.uint32)

        return render(self.model, self.layout, map(bits, physics), width, height)

    def _start(self, keys: UInt32[Array, "env 2"]) -> tuple[Simulation, Fields]:
        return self._with_changes(self.engine.start(*initial_states(self.task, self.model, keys)), None)

    def _with_changes(self, stepped: EngineStep, before: dict[str, Array] | None) -> tuple[Simulation, Fields]:
        """Returns the state to carry and the fields that the task reads; changes are relative to `before`, or zero."""
        now = {name: stepped.fields[name] for name in self.task.changes}
        change = jax.tree.map(jnp.subtract, now, now if before is None else before)
        return Simulation(stepped.state, now), Fields(stepped.fields, change=Fields(change))

    def _reset_rows(
        self, keys: UInt32[Array, "env 2"], mask: Bool[Array, " env"], now: Simulation
    ) -> tuple[Simulation, Float[Array, "env obs"]]:
        first, data = self._start(keys)
        return base.choose_rows(mask, first, now), observe(self.task, self.model, data)
