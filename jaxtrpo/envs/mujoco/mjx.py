"""A MuJoCo task on MJX, MuJoCo's engine written in JAX, which runs wherever JAX runs."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree, UInt32

from jaxtrpo.envs import base
from jaxtrpo.envs.mujoco.film import render
from jaxtrpo.envs.mujoco.model import compile_model, controls, first_states, observation_size, observe, outcome
from jaxtrpo.envs.mujoco.native import make_layout
from jaxtrpo.envs.mujoco.task import Fields, Task
from jaxtrpo.envs.names import unknown_name

IMPLEMENTATIONS = ("jax", "warp")
# What one step hands to the next, in the order of MuJoCo's integration state; mjx.Data holds much more, all of which
# the next step computes again.
CARRIED = ("time", "qpos", "qvel", "act", "qacc_warmstart")
# MJX allocates these as MuJoCo does, but its step leaves them alone or keeps another factorisation in them.
NOT_COMPUTED = ("qLD", "qLDiagInv", "qfrc_inverse", "userdata", "history", "plugin_state")


class Simulation(NamedTuple):
    """A batch of simulations between two steps."""

    state: dict[str, Float[Array, "env ..."]]  # `CARRIED`
    before: dict[str, Float[Array, "env ..."]]  # last values of the fields whose change the task reads


class MjxEnvironment:
    """A `Task` on MJX (see `jaxtrpo.envs.base.Environment`).

    The model, the first states of a key, observations, rewards and terminations are those of `MujocoEnvironment`. What
    differs is the engine: it computes in float32, so that trajectories part from the C engine's as any two roundings
    do, and changes of fields are differences of float32 values. MJX has no projected Gauss-Seidel solver (PGS); where
    the MJCF asks for it, Newton's method solves the same convex problem.
    """

    is_program = True

    def __init__(self, task: Task, impl: str = "jax"):
        """Puts the model into MJX and traces one step of it, which compiles nothing.

        Args:
          task: the task.
          impl: "jax", or "warp" for MuJoCo Warp, which needs the package warp-lang and pays on NVIDIA's GPUs.

        Raises:
          ValueError: the MJCF is not valid, a setting of the task does not fit it, or MJX lacks something it needs.
        """
        self.task, self.name, self.episode_length = task, f"mjx:{task.name}", task.episode_length
        self.model = compile_model(task)
        self.layout = make_layout(self.model, task.fields, task.changes)
        self.action_low, self.action_high, *_ = controls(self.model)
        self.action_size = int(self.model.nu)
        self.observation_size = observation_size(task, self.model, self.layout.shapes)
        self._mjx = _engine(impl)
        self._engine_model, self._blank = self._put(impl)
        self._check_fields()

    def reset(self, key: UInt32[Array, "2"], num_envs: int) -> base.EnvState:
        """Starts `num_envs` episodes."""
        return base.start(key, num_envs, self._reset_rows, base.blank(lambda keys: self._reset(keys)[0], num_envs))

    def step(self, state: base.EnvState, action: Float[Array, "env action"]) -> base.EnvState:
        """Applies one action (in the simulator's units) to each environment."""
        if action.shape != (len(state.obs), self.action_size):
            raise ValueError(f"actions have shape {action.shape}, expected {(len(state.obs), self.action_size)}")
        physics, data = jax.vmap(self._step)(state.physics, action.astype(jnp.float32))
        means = outcome(self.task, self.model, data, action)
        # MuJoCo calls a simulation unstable by the same numbers.
        numbers = (physics.state["qpos"], physics.state["qvel"], physics.state["qacc_warmstart"], action)
        finite = jnp.all(jnp.abs(jnp.concatenate(numbers, axis=-1)) <= base.LARGEST_OBSERVATION, axis=-1)
        moved = base.Transition(physics, means.obs, means.reward, means.terminated, finite & _all_finite(data))
        return base.advance(state, moved, self._reset_rows, self.episode_length)

    @property
    def seconds_per_step(self) -> float:
        """Simulated time between two actions."""
        return float(self.model.opt.timestep * self.task.frame_skip)

    def render(self, physics: Iterable[Simulation], width: int, height: int) -> Iterator[np.ndarray]:
        """A picture [height, width, 3] of each `physics` of one environment, on the host."""

        def bits(physics: Simulation) -> np.ndarray:
            parts = [np.ravel(physics.state[name]) for name in CARRIED if name in physics.state]
            return np.concatenate(parts).astype(np.float64).view(np.uint32)

        return render(self.model, self.layout, map(bits, physics), width, height)

    def _put(self, impl: str) -> tuple[PyTree, PyTree]:
        """MJX's model and an `mjx.Data`, in NumPy: arrays of one device could not be used by programs of another."""
        if self.model.nhistory or self.model.nplugin:
            raise ValueError(f"{self.name}: MJX does not compute delays and plugins")
        model = self.model
        if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
            model = _copy_with_newton(model)
        try:
            with _silence():
                put = self._mjx.put_model(model, impl=impl), self._mjx.make_data(model, impl=impl)
                one = jax.tree.map(np.asarray, put)
                jax.eval_shape(self._mjx.step, *one)
        except NotImplementedError as error:
            raise ValueError(f"{self.name}: MJX does not support its model: {error}") from error
        return one

    def _check_fields(self) -> None:
        for name in self.task.fields:
            value = self._read(self._blank, name)
            size = int(np.prod(self.layout.shapes[name], dtype=int))
            if value is None or name in NOT_COMPUTED or np.size(value) != size:
                raise ValueError(f"{self.name}: MJX does not compute the field {name!r}, which the task reads")

    def _read(self, data: Any, name: str) -> Any:
        """A field of `mjx.Data`, which keeps what differs between implementations apart; None if there is none."""
        return vars(data)[name] if name in vars(data) else getattr(data._impl, name, None)

    def _step(self, physics: Simulation, action: Float[Array, " action"]) -> tuple[Simulation, Fields]:
        """One environment's step."""
        model, blank = jax.tree.map(jnp.asarray, (self._engine_model, self._blank))
        data = blank.replace(ctrl=action, **physics.state)
        data, _ = jax.lax.scan(lambda d, _: (self._mjx.step(model, d), None), data, length=self.task.frame_skip)
        if "cfrc_ext" in self.task.fields:  # nothing else needs it, and a step does not compute it
            data = self._mjx.rne_postconstraint(model, data)
        return self._leave(data, physics.before)

    def _reset(self, keys: UInt32[Array, "env 2"]) -> tuple[Simulation, Fields]:
        def one(qpos: Array, qvel: Array) -> tuple[Simulation, Fields]:
            model, blank = jax.tree.map(jnp.asarray, (self._engine_model, self._blank))
            data = blank.replace(qpos=qpos, qvel=qvel)
            if set(self.task.fields) - set(CARRIED):
                # As Gymnasium does: forward kinematics and dynamics, but no contact forces (cfrc_ext) yet.
                data = self._mjx.forward(model, data)
            return self._leave(data, None)

        return jax.vmap(one)(*first_states(self.task, self.model, keys))

    def _leave(self, data: Any, before: dict[str, Array] | None) -> tuple[Simulation, Fields]:
        """What is carried on, and what the task sees; changes are relative to `before`, or zero."""
        fields = {name: self._read(data, name).reshape(self.layout.shapes[name]) for name in self.task.fields}
        now = {name: fields[name] for name in self.task.changes}
        change = jax.tree.map(jnp.subtract, now, now if before is None else before)
        state = {name: getattr(data, name) for name in CARRIED}
        return Simulation(state, now), Fields(fields, change=Fields(change))

    def _reset_rows(
        self, keys: UInt32[Array, "env 2"], mask: Bool[Array, " env"], now: Simulation
    ) -> tuple[Simulation, Float[Array, "env obs"]]:
        first, data = self._reset(keys)
        return base.choose_rows(mask, first, now), observe(self.task, self.model, data)


def _all_finite(data: Fields) -> Bool[Array, " env"]:
    rows = [jnp.all(jnp.isfinite(leaf.reshape(len(leaf), -1)), axis=-1) for leaf in jax.tree.leaves(data)]
    return jnp.all(jnp.stack(rows), axis=0)


def _copy_with_newton(model: mujoco.MjModel) -> mujoco.MjModel:
    import copy

    model = copy.copy(model)
    model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    return model


def _engine(impl: str) -> Any:
    with _silence():
        mjx: Any = importlib.import_module("mujoco.mjx")
    if impl not in IMPLEMENTATIONS:
        raise ValueError(unknown_name(impl, IMPLEMENTATIONS, kind="implementation of MJX"))
    return mjx


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Importing MJX prints which optional packages it misses."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
