"""Makes an environment of a MuJoCo task."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Float, UInt32

from jaxtrpo.envs import base
from jaxtrpo.envs.mujoco.film import render
from jaxtrpo.envs.mujoco.physics import Physics
from jaxtrpo.envs.mujoco.task import Fields, Task


class MujocoEnvironment:
    """A `Task` on the C engine (see `jaxtrpo.envs.base.Environment`)."""

    def __init__(self, task: Task):
        """Compiles the model and tries the task's functions once.

        Raises:
          ValueError: the MJCF is not valid, or a setting of the task does not fit the model.
        """
        if task.frame_skip < 1 or task.episode_length < 1:
            raise ValueError(f"{task.name}: frame_skip and episode_length must be at least 1")
        self.task, self.name, self.episode_length = task, task.name, task.episode_length
        self.model = _compile(task.xml)
        self.physics = Physics(self.model, task.frame_skip, task.fields, task.changes)
        limits = np.asarray(self.model.actuator_ctrlrange, np.float32)
        limited = np.asarray(self.model.actuator_ctrllimited, bool)
        self.action_size = int(self.model.nu)
        self.action_low = np.where(limited, limits[:, 0], -1).astype(np.float32)
        self.action_high = np.where(limited, limits[:, 1], 1).astype(np.float32)
        self.observation_size = self._check()

    def _check(self) -> int:
        """Traces the task's functions once; returns the size of an observation."""

        def trace(key: UInt32[Array, "2"], rows: Float[Array, "1 fields"], action: Float[Array, " action"]):
            task, model = self.task, self.model
            data = jax.tree.map(lambda x: x[0], self._fields(rows))
            outputs = {
                "observation": task.observation(model, data),
                "reward": task.reward(model, data, action),
                "terminated": task.terminated(model, data),
            }
            return dict(zip(("qpos", "qvel"), task.initial_state(key, model), strict=True)), outputs

        shapes = (2,), (1, self.physics.layout.field_size), (self.action_size,)
        dtypes = jnp.uint32, jnp.float32, jnp.float32
        state, outputs = jax.eval_shape(trace, *map(jax.ShapeDtypeStruct, shapes, dtypes))
        found = {name: jnp.shape(x) for name, x in {**state, **outputs}.items()}
        size = int(np.prod(found["observation"], dtype=int))
        nq, nv = self.model.nq, self.model.nv
        expected = {"qpos": (nq,), "qvel": (nv,), "observation": (size,), "reward": (), "terminated": ()}
        for name, shape in expected.items():
            if found[name] != shape:
                raise ValueError(f"{self.name}: {name} has shape {found[name]}, expected {shape}")
        return size

    def reset(self, key: UInt32[Array, "2"], num_envs: int) -> base.EnvState:
        """Starts `num_envs` episodes."""
        return base.start(key, num_envs, self._reset_rows, self.physics.blank(num_envs))

    def step(self, state: base.EnvState, action: Float[Array, "env action"]) -> base.EnvState:
        """Applies one action (in the simulator's units) to each environment."""
        bits, rows = self.physics.step(state.physics, action)
        data = self._fields(rows)
        task, model = self.task, self.model
        moved = base.Transition(
            physics=bits,
            obs=jax.vmap(lambda d: task.observation(model, d))(data).astype(jnp.float32),
            reward=jax.vmap(lambda d, a: jnp.float32(task.reward(model, d, a)))(data, action),
            terminated=jax.vmap(lambda d: jnp.bool_(task.terminated(model, d)))(data),
            finite=jnp.all(jnp.isfinite(rows), axis=-1),
        )
        return base.advance(state, moved, self._reset_rows, self.episode_length)

    @property
    def seconds_per_step(self) -> float:
        """Simulated time between two actions."""
        return float(self.model.opt.timestep * self.task.frame_skip)

    def render(self, physics: Iterable[np.ndarray], width: int, height: int) -> Iterator[np.ndarray]:
        """A picture [height, width, 3] of each `physics` of one environment, on the host."""
        return render(self.model, self.physics.layout, physics, width, height)

    def _reset_rows(self, keys, mask, bits):
        qpos, qvel = jax.vmap(lambda key: self.task.initial_state(key, self.model))(keys)
        bits, rows = self.physics.reset(bits, mask, qpos.astype(jnp.float32), qvel.astype(jnp.float32))
        obs = jax.vmap(lambda d: self.task.observation(self.model, d))(self._fields(rows))
        return bits, obs.astype(jnp.float32)

    def _fields(self, rows: Float[Array, "env fields"]) -> Fields:
        """Names the columns; of a batch, to be mapped over."""
        data, change = {}, {}
        for name, is_change, where in self.physics.layout.slices():
            value = rows[:, where].reshape(-1, *self.physics.layout.shapes[name])
            (change if is_change else data)[name] = value
        return Fields(data, change=Fields(change))


jax.tree_util.register_pytree_node(
    Fields,
    lambda fields: (tuple(fields.values()), tuple(fields)),
    lambda names, values: Fields(zip(names, values, strict=True)),
)


def _compile(xml: str) -> mujoco.MjModel:
    try:
        is_file = not xml.lstrip().startswith("<")
        if is_file and not os.path.exists(xml):
            raise ValueError(f"no such MJCF file: {xml}")
        # MjSpec turns the compiler's warnings into Python's; MjModel prints them and writes a log file.
        spec = mujoco.MjSpec.from_file(xml) if is_file else mujoco.MjSpec.from_string(xml)
        with warnings.catch_warnings():
            # Gymnasium's half_cheetah.xml has it, and its users cannot do anything about that.
            warnings.filterwarnings("ignore", message="compiler attribute 'settotalmass' is deprecated")
            model = spec.compile()
    except ValueError as error:
        raise ValueError(f"the MJCF of the task is not valid: {error}") from error
    # A simulation that breaks must not be reset behind our back: we mask the step and count it.
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    return model
