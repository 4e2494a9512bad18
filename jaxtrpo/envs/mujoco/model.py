"""The model of a task, and what the task's functions make of a simulation of it; the same for every engine."""

from __future__ import annotations

import os
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Bool, Float, UInt32

from jaxtrpo.config.messages import one_line, short, type_name
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.envs.mujoco.task import Fields, Task


class Outcome(NamedTuple):
    """What a step means to the learner."""

    obs: Float[Array, " obs"]
    reward: Float[Array, ""]
    terminated: Bool[Array, ""]


def compile_model(task: Task) -> mujoco.MjModel:
    """Compiles the MJCF of a task.

    Raises:
      ValueError: the MJCF is not valid, or a setting of the task is not.
    """
    for name in ("frame_skip", "episode_length"):
        value = getattr(task, name)
        if not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{task.name}: {name}={short(value)} must be a whole number of at least 1")
    if not isinstance(task.xml, str | os.PathLike):
        raise ValueError(f"{task.name}: xml={short(task.xml)} must be the path of an MJCF file, or MJCF text")
    xml = os.fspath(task.xml)
    try:
        is_file = isinstance(task.xml, os.PathLike) or not xml.lstrip().startswith("<")
        if is_file and not os.path.isfile(xml):
            raise ValueError(f"no such MJCF file: {one_line(xml)}")
        # MjSpec turns the compiler's warnings into Python's; MjModel prints them and writes a log file.
        spec = mujoco.MjSpec.from_file(xml) if is_file else mujoco.MjSpec.from_string(xml)
        with warnings.catch_warnings():
            # Gymnasium's half_cheetah.xml has it, and its users cannot do anything about that.
            warnings.filterwarnings("ignore", message="compiler attribute 'settotalmass' is deprecated")
            model = spec.compile()
    except ValueError as error:
        raise ValueError(f"the MJCF of the task is not valid: {error}") from error
    if model.nq == 0:
        raise ValueError(f"{task.name}: the model has no joints, so that nothing moves; add a <joint> or <freejoint>")
    if model.nu == 0:
        raise ValueError(f"{task.name}: the model has no actuators, so that no action does anything; add an <actuator>")
    # A simulation that breaks must not be reset behind our back: we mask the step and count it.
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    return model


def controls(name: str, model: mujoco.MjModel) -> ActionSpace:
    """The actuators' limits; -1 and 1 where an actuator has none, and then a warning that says so.

    Args:
      name: of the environment.
      model: its compiled model.
    """
    limits = np.asarray(model.actuator_ctrlrange, np.float32)
    limited = np.asarray(model.actuator_ctrllimited, bool)
    if not limited.all():
        which = ", ".join(model.actuator(i).name or f"number {i}" for i in np.flatnonzero(~limited))
        warnings.warn(
            f"{name}: actions are between -1 and 1 for actuators without ctrlrange ({one_line(which, 60)}); if they "
            "should reach further, as the targets of servos may, give them one in the MJCF",
            stacklevel=3,
        )
    low, high = (np.where(limited, limits[:, side], bound).astype(np.float32) for side, bound in ((0, -1), (1, 1)))
    return ActionSpace(low, high)


def observation_size(task: Task, model: mujoco.MjModel, shapes: dict[str, tuple[int, ...]]) -> int:
    """Traces the task's functions once; returns the size of an observation.

    Args:
      task: whose functions.
      model: its compiled model.
      shapes: of each of the task's fields.

    Raises:
      ValueError: a function returns something of another shape than it should.
    """
    fields = {name: jax.ShapeDtypeStruct(shapes[name], jnp.float32) for name in task.fields}
    data = Fields(fields, change=Fields({name: fields[name] for name in task.changes}))
    action = jax.ShapeDtypeStruct((model.nu,), jnp.float32)
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    state = jax.eval_shape(lambda key: task.initial_state(key, model), key)
    outputs = jax.eval_shape(
        lambda data, action: {
            "observation": task.observation(model, data),
            "reward": task.reward(model, data, action),
            "terminated": task.terminated(model, data),
        },
        data,
        action,
    )
    if not isinstance(state, tuple | list) or len(state) != 2:
        raise ValueError(f"{task.name}: initial_state must return two arrays (qpos, qvel), not {type_name(state)}")
    returned = {**dict(zip(("qpos", "qvel"), state, strict=True)), **outputs}
    for name, value in returned.items():
        if not isinstance(value, jax.ShapeDtypeStruct):
            raise ValueError(f"{task.name}: {name} must be one array, not {type_name(value)}")
    found = {name: value.shape for name, value in returned.items()}
    size = int(np.prod(found["observation"], dtype=int))
    expected = {"qpos": (model.nq,), "qvel": (model.nv,), "observation": (size,), "reward": (), "terminated": ()}
    for name, shape in expected.items():
        if found[name] != shape:
            raise ValueError(f"{task.name}: {name} has shape {found[name]}, expected {shape}")
    if size == 0:
        raise ValueError(f"{task.name}: the observation holds no numbers, so that there is nothing to act on")
    return size


def first_states(
    task: Task, model: mujoco.MjModel, keys: UInt32[Array, "env 2"]
) -> tuple[Float[Array, "env nq"], Float[Array, "env nv"]]:
    """(qpos, qvel) of new episodes, which depend on nothing but the keys."""
    qpos, qvel = jax.vmap(lambda key: task.initial_state(key, model))(keys)
    return qpos.astype(jnp.float32), qvel.astype(jnp.float32)


def observe(task: Task, model: mujoco.MjModel, data: Fields) -> Float[Array, "env obs"]:
    """Observations of a batch of simulations."""
    return jax.vmap(lambda d: task.observation(model, d))(data).astype(jnp.float32)


def outcome(task: Task, model: mujoco.MjModel, data: Fields, action: Float[Array, "env action"]) -> Outcome:
    """What the step that led a batch of simulations to `data` means."""
    return Outcome(
        obs=observe(task, model, data),
        reward=jax.vmap(lambda d, a: jnp.float32(task.reward(model, d, a)))(data, action),
        terminated=jax.vmap(lambda d: jnp.bool_(task.terminated(model, d)))(data),
    )
