"""Makes an environment of a MuJoCo task that is a JAX program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, UInt32

from jaxtrpo.envs import base
from jaxtrpo.envs.mujoco.film import render
from jaxtrpo.envs.mujoco.mjx_engine import CARRIED, MjxEngine, Moved, State
from jaxtrpo.envs.mujoco.model import compile_model, controls, first_states, observation_size, observe, outcome
from jaxtrpo.envs.mujoco.native import make_layout
from jaxtrpo.envs.mujoco.task import Fields, Task


class Simulation(NamedTuple):
    """A batch of simulations between two steps."""

    state: State
    before: dict[str, Float[Array, "env ..."]]  # last values of the fields whose change the task reads


class MjxEnvironment:
    """A `Task` on MJX, MuJoCo's engine written in JAX (see `jaxtrpo.envs.base.Environment`).

    Model, first states, observations, rewards and terminations are those of `MujocoEnvironment`. What differs is the
    engine: it computes in float32, so that trajectories part from the C engine's as those of any two roundings do, and
    the change of a field is a difference of float32 values. MJX has no projected Gauss-Seidel solver (PGS); where the
    MJCF asks for it, Newton's method solves the same convex problem. On a plane, MJX turns the friction pyramid of a
    capsule that stands steeper than 60 degrees (`plane_capsule` of its `collision_primitive`): a leg that slides there,
    as Ant's do, is slowed a little differently than in the C engine.
    """

    is_program = True

    def __init__(self, task: Task, impl: str = "jax"):
        """Compiles the model and traces the task's functions and a step once, which compiles nothing.

        Args:
          task: the task.
          impl: "jax", or "warp" for MuJoCo Warp, which needs the package warp-lang and is made for NVIDIA's GPUs.

        Raises:
          ValueError: the MJCF is not valid, a setting of the task does not fit it, or MJX lacks something it needs.
        """
        self.task, self.name, self.episode_length = task, f"mjx:{task.name}", task.episode_length
        self.model = compile_model(task)
        self.layout = make_layout(self.model, task.fields, task.changes)
        self.action_low, self.action_high, *_ = controls(self.name, self.model)
        self.action_size = int(self.model.nu)
        self.observation_size = observation_size(task, self.model, self.layout.shapes)
        try:
            self.engine = MjxEngine(self.model, self.layout.shapes, task.frame_skip, impl)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error

    def reset(self, key: UInt32[Array, "2"], num_envs: int) -> base.EnvState:
        """Starts `num_envs` episodes."""
        return base.start(key, num_envs, self._reset_rows, base.blank(lambda keys: self._begin(keys)[0], num_envs))

    def step(self, state: base.EnvState, action: Float[Array, "env action"]) -> base.EnvState:
        """Applies one action (in the simulator's units) to each environment."""
        if action.shape != (len(state.obs), self.action_size):
            raise ValueError(f"actions have shape {action.shape}, expected {(len(state.obs), self.action_size)}")
        before: Simulation = state.physics
        moved = self.engine.step(before.state, action.astype(jnp.float32))
        physics, data = self._seen(moved, before.before)
        means = outcome(self.task, self.model, data, action)
        stepped = base.Transition(physics, means.obs, means.reward, means.terminated, moved.finite)
        return base.advance(state, stepped, self._reset_rows, self.episode_length)

    @property
    def seconds_per_step(self) -> float:
        """Simulated time between two actions."""
        return float(self.model.opt.timestep * self.task.frame_skip)

    def render(self, physics: Iterable[Simulation], width: int, height: int) -> Iterator[np.ndarray]:
        """A picture [height, width, 3] of each `physics` of one environment, on the host."""

        def bits(physics: Simulation) -> np.ndarray:  # as the C engine's states are carried
            parts = [np.ravel(physics.state[name]) for name in CARRIED if name in physics.state]
            return np.concatenate(parts).astype(np.float64).view(np.uint32)

        return render(self.model, self.layout, map(bits, physics), width, height)

    def _begin(self, keys: UInt32[Array, "env 2"]) -> tuple[Simulation, Fields]:
        return self._seen(self.engine.start(*first_states(self.task, self.model, keys)), None)

    def _seen(self, moved: Moved, before: dict[str, Array] | None) -> tuple[Simulation, Fields]:
        """What is carried on, and what the task sees; changes are relative to `before`, or zero."""
        now = {name: moved.fields[name] for name in self.task.changes}
        change = jax.tree.map(jnp.subtract, now, now if before is None else before)
        return Simulation(moved.state, now), Fields(moved.fields, change=Fields(change))

    def _reset_rows(
        self, keys: UInt32[Array, "env 2"], mask: Bool[Array, " env"], now: Simulation
    ) -> tuple[Simulation, Float[Array, "env obs"]]:
        first, data = self._begin(keys)
        return base.choose_rows(mask, first, now), observe(self.task, self.model, data)
