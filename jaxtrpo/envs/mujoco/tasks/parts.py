"""Functions shared by several tasks."""

from __future__ import annotations

import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import mujoco
from jaxtyping import Array, Bool, Float, UInt32

Model = mujoco.MjModel
Key = UInt32[Array, "2"]


def asset(name: str) -> str:
    # Avoids importing gymnasium.envs.mujoco, which needs rendering packages.
    spec = importlib.util.find_spec("gymnasium")
    assert spec is not None and spec.origin is not None
    return str(pathlib.Path(spec.origin).parent / "envs" / "mujoco" / "assets" / name)


def uniform_noise(key: Key, size: int) -> Float[Array, " size"]:
    """Draws uniform numbers in [-1, 1]; tasks split a single draw per reset, because further draws add compile time."""
    return jax.random.uniform(key, (size,), minval=-1.0, maxval=1.0)


def standard_normal(uniform: Float[Array, "..."]) -> Float[Array, "..."]:
    """Transforms uniform numbers in [-1, 1] to standard normal ones, by the inverse distribution function."""
    return 2**0.5 * jax.scipy.special.erfinv(jnp.clip(uniform, -1 + 1e-7, 1 - 1e-7))


def around_default(position_scale: float, velocity_scale: float, *, normal_velocity: bool = False):
    """Builds `Task.initial_state`: the model's default state plus noise, uniform, or normal for velocities if asked."""

    def initial_state(key: Key, model: Model) -> tuple[Float[Array, " nq"], Float[Array, " nv"]]:
        noise = uniform_noise(key, model.nq + model.nv)
        qpos = jnp.asarray(model.qpos0, jnp.float32) + position_scale * noise[: model.nq]
        velocity = noise[model.nq :]
        return qpos, velocity_scale * (standard_normal(velocity) if normal_velocity else velocity)

    return initial_state


def effort_cost(weight: float, action: Float[Array, " action"]) -> Float[Array, ""]:
    return weight * jnp.sum(action**2)


def inside(low: float, value: Float[Array, "..."], high: float) -> Bool[Array, "..."]:
    return (low < value) & (value < high)
