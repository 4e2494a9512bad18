"""A MuJoCo task as data and pure functions; the engine under it is exchangeable."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import mujoco
from jaxtyping import Array, Bool, Float, UInt32


class Fields(dict):
    """The MjData fields of one environment, as float32 arrays of MjData's shapes: `data.qpos`, `data.qvel`, ...

    For a field named in `Task.changes`, `data.change.NAME` is how much it changed over the last step: the difference of
    the engine's float64 values, rounded once. Far from the origin this is exact where a difference of float32 positions
    is not. It is zero after a reset.
    """

    change: Fields

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"the task does not ask for the MjData field {name!r}; it has {', '.join(self)}. Add it to Task.fields"
            ) from None


jax.tree_util.register_pytree_node(
    Fields,
    lambda fields: (tuple(fields.values()), tuple(fields)),
    lambda names, values: Fields(zip(names, values, strict=True)),
)


class Task(NamedTuple):
    """Everything that makes a MuJoCo model a reinforcement-learning task.

    The four functions are written for one environment, with jax.numpy, and are mapped and compiled by us. `model` is
    the compiled MjModel: its numbers are constants to them.
    """

    name: str
    xml: str | os.PathLike[str]  # path of an MJCF file, or the MJCF text itself
    frame_skip: int  # physics steps an action is held
    episode_length: int  # time limit in environment steps
    initial_state: Callable[
        [UInt32[Array, "2"], mujoco.MjModel], tuple[Float[Array, " nq"], Float[Array, " nv"]]
    ]  # key -> (qpos, qvel) of a new episode
    observation: Callable[[mujoco.MjModel, Fields], Float[Array, " obs"]]
    reward: Callable[[mujoco.MjModel, Fields, Float[Array, " action"]], Float[Array, ""]]
    terminated: Callable[[mujoco.MjModel, Fields], Bool[Array, ""] | bool] = lambda model, data: False
    fields: tuple[str, ...] = ("qpos", "qvel")  # MjData fields that the functions read
    changes: tuple[str, ...] = ()  # those of `fields` whose change over a step they read as well


def timestep(model: mujoco.MjModel, frame_skip: int) -> float:
    """Seconds an action lasts."""
    return float(model.opt.timestep) * frame_skip
