"""The definition of a MuJoCo task, independent of the engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import mujoco
from jaxtyping import Array, Bool, Float, UInt32


class Fields(dict):
    """MjData fields of one environment, as float32 arrays of MjData's shapes: `data.qpos`, `data.qvel`, ...

    For a field in `Task.changes`, `data.change.NAME` is its change over the last step, zero after a reset. It is the
    difference of the engine's float64 values, rounded once, and thus accurate even far from the origin, unlike a
    difference of float32 positions.
    """

    change: Fields

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"the MjData field {name!r} is not in Task.fields, which has {', '.join(self)}; add it to Task.fields"
            ) from None


jax.tree_util.register_pytree_node(
    Fields,
    lambda fields: (tuple(fields.values()), tuple(fields)),
    lambda names, values: Fields(zip(names, values, strict=True)),
)


class Task(NamedTuple):
    """A reinforcement-learning task on a MuJoCo model.

    The four functions are written with jax.numpy for one environment; the environment maps them over a batch and
    compiles them. `model` is the compiled MjModel, whose values are constants in compiled code.
    """

    name: str  # of the environment, in files and messages
    xml: str | os.PathLike[str]  # path of an MJCF file, or the MJCF text itself
    frame_skip: int  # physics steps per action
    episode_length: int  # time limit in environment steps
    initial_state: Callable[
        [UInt32[Array, "2"], mujoco.MjModel], tuple[Float[Array, " nq"], Float[Array, " nv"]]
    ]  # key -> (qpos, qvel) of a new episode
    observation: Callable[[mujoco.MjModel, Fields], Float[Array, " obs"]]  # (model, data) -> observation
    reward: Callable[
        [mujoco.MjModel, Fields, Float[Array, " action"]], Float[Array, ""]
    ]  # (model, data after the step, action) -> reward
    # (model, data after the step) -> whether the episode ends for good
    terminated: Callable[[mujoco.MjModel, Fields], Bool[Array, ""] | bool] = lambda model, data: False
    fields: tuple[str, ...] = ("qpos", "qvel")  # MjData fields that the functions read
    changes: tuple[str, ...] = ()  # those of `fields` whose change over a step the functions read


def timestep(model: mujoco.MjModel, frame_skip: int) -> float:
    """Returns the simulated seconds per action."""
    return float(model.opt.timestep) * frame_skip
