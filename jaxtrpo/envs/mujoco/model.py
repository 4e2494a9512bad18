"""Compilation of a task's model and evaluation of the task's functions, for every engine."""

from __future__ import annotations

import os
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jax.extend.core import Literal
from jaxtyping import Array, Bool, Float, UInt32

from jaxtrpo.config.checks import require_whole
from jaxtrpo.config.messages import one_line, short, type_name
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.envs.mujoco.task import Fields, Task


class Outcome(NamedTuple):
    """Observation, reward and termination of a step."""

    obs: Float[Array, " obs"]
    reward: Float[Array, ""]
    terminated: Bool[Array, ""]


def _require_no_callbacks() -> None:
    """Raises ValueError if MuJoCo would call Python, which a batch does not support."""
    kinds = ("passive", "control", "contactfilter", "sensor", "act_dyn", "act_gain", "act_bias")
    installed = [kind for kind in kinds if getattr(mujoco, f"get_mjcb_{kind}")() is not None]
    if installed:
        raise ValueError(
            f"MuJoCo's callback mjcb_{installed[0]} is set, which simulations in a batch do not support; remove it by "
            f"mujoco.set_mjcb_{installed[0]}(None)"
        )


def compile_model(task: Task) -> mujoco.MjModel:
    """Compiles the MJCF of a task.

    Raises:
      ValueError: `task` is not a task, its MJCF or a setting is invalid, or MuJoCo has callbacks.
    """
    if not isinstance(task, Task):
        raise ValueError(f"{short(task)} must be a Task; jaxtrpo.make_env(NAME) makes environments by name")
    _require_no_callbacks()
    for name in ("frame_skip", "episode_length"):
        require_whole(1, **{f"{task.name}: {name}": getattr(task, name)})
    if not isinstance(task.xml, str | os.PathLike):
        raise ValueError(f"{task.name}: xml={short(task.xml)} must be the path of an MJCF file, or MJCF text")
    xml = os.fspath(task.xml)
    try:
        is_file = isinstance(task.xml, os.PathLike) or not xml.lstrip().startswith("<")
        if is_file and not os.path.isfile(xml):
            raise ValueError(f"no such MJCF file: {one_line(xml)}")
        # MjSpec turns compiler warnings into Python warnings; MjModel prints them and writes a log file.
        spec = mujoco.MjSpec.from_file(xml) if is_file else mujoco.MjSpec.from_string(xml)
        with warnings.catch_warnings():
            # Gymnasium's half_cheetah.xml uses it.
            warnings.filterwarnings("ignore", message="compiler attribute 'settotalmass' is deprecated")
            model = spec.compile()
    except ValueError as error:
        raise ValueError(f"{task.name}: cannot load the MJCF: {error}") from error
    if model.nq == 0:
        raise ValueError(f"{task.name}: the model has no joints; add a <joint> or <freejoint>")
    if model.nu == 0:
        raise ValueError(f"{task.name}: the model has no actuators; add an <actuator>")
    if model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP:
        raise ValueError(
            f'{task.name}: simulations in a batch do not support sleep; remove <flag sleep="enable"/> from the MJCF'
        )
    # MuJoCo must not silently reset an unstable simulation: `base.advance` marks the step as invalid.
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    return model


def control_space(name: str, model: mujoco.MjModel) -> ActionSpace:
    """Returns the control ranges of the actuators; [-1, 1], with a warning, for those without ctrlrange.

    Args:
      name: name of the environment, for the warning.
      model: compiled model.
    """
    limits = np.asarray(model.actuator_ctrlrange, np.float32)
    limited = np.asarray(model.actuator_ctrllimited, bool)
    if not limited.all():
        owner = np.repeat(np.arange(model.nactuator), model.actuator_ctrlnum)  # an actuator may have several controls
        of_owners = dict.fromkeys(int(owner[i]) for i in np.flatnonzero(~limited))
        unlimited = ", ".join(model.actuator(i).name or f"number {i}" for i in of_owners)
        warnings.warn(
            f"{name}: actions of actuators without ctrlrange ({one_line(unlimited, 60)}) are limited to [-1, 1]; set "
            "ctrlrange in the MJCF for another range, such as that of a servo's target",
            stacklevel=3,
        )
    low, high = (np.where(limited, limits[:, side], bound).astype(np.float32) for side, bound in ((0, -1), (1, 1)))
    return ActionSpace(low, high)


def observation_size(task: Task, model: mujoco.MjModel, shapes: dict[str, tuple[int, ...]]) -> int:
    """Traces the task's functions and returns the size of an observation.

    Args:
      task: task to check.
      model: its compiled model.
      shapes: shape of each of the task's fields.

    Raises:
      ValueError: a function returns an object of a wrong type or shape.
    """
    data = _shapes_of_fields(task, shapes)
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
        if not any(jnp.issubdtype(value.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
            raise ValueError(f"{task.name}: {name} must hold real numbers, not {value.dtype}")
    found = {name: value.shape for name, value in returned.items()}
    size = int(np.prod(found["observation"], dtype=int))
    expected = {"qpos": (model.nq,), "qvel": (model.nv,), "observation": (size,), "reward": (), "terminated": ()}
    for name, shape in expected.items():
        if found[name] != shape:
            raise ValueError(f"{task.name}: {name} has shape {found[name]}, expected {shape}")
    if size == 0:
        raise ValueError(f"{task.name}: the observation is empty; it must hold at least one number")
    return size


def _shapes_of_fields(task: Task, shapes: dict[str, tuple[int, ...]]) -> Fields:
    """Returns what the task's functions read of one environment, to trace them with."""
    fields = {name: jax.ShapeDtypeStruct(shapes[name], jnp.float32) for name in task.fields}
    return Fields(fields, change=Fields({name: fields[name] for name in task.changes}))


def may_terminate(task: Task, model: mujoco.MjModel, shapes: dict[str, tuple[int, ...]]) -> bool:
    """Returns whether episodes may end before their time limit: unless the task's `terminated` is constantly False.

    Args:
      task: task whose functions fit the model.
      model: its compiled model.
      shapes: shape of each of the task's fields.
    """
    data = _shapes_of_fields(task, shapes)
    (found,) = jax.make_jaxpr(lambda data: jnp.bool_(task.terminated(model, data)))(data).jaxpr.outvars
    return not (isinstance(found, Literal) and not found.val)


def initial_states(
    task: Task, model: mujoco.MjModel, keys: UInt32[Array, "env 2"]
) -> tuple[Float[Array, "env nq"], Float[Array, "env nv"]]:
    """Returns (qpos, qvel) of new episodes, which depend only on the keys."""
    qpos, qvel = jax.vmap(lambda key: task.initial_state(key, model))(keys)
    return qpos.astype(jnp.float32), qvel.astype(jnp.float32)


def observe(task: Task, model: mujoco.MjModel, data: Fields) -> Float[Array, "env obs"]:
    """Computes the observations of a batch of simulations."""
    return jax.vmap(lambda d: task.observation(model, d))(data).astype(jnp.float32)


def evaluate_step(task: Task, model: mujoco.MjModel, data: Fields, action: Float[Array, "env action"]) -> Outcome:
    """Computes observations, rewards and terminations of the step that led a batch of simulations to `data`."""
    return Outcome(
        obs=observe(task, model, data),
        reward=jax.vmap(lambda d, a: jnp.float32(task.reward(model, d, a)))(data, action),
        terminated=jax.vmap(lambda d: jnp.bool_(task.terminated(model, d)))(data),
    )
