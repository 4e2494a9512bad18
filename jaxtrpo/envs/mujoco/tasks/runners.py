"""Planar locomotion tasks: HalfCheetah, Swimmer, Hopper and Walker2d."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool

from jaxtrpo.envs.mujoco.task import Fields, Task, timestep
from jaxtrpo.envs.mujoco.tasks.parts import Model, around_default, asset, effort_cost, inside


def _runner(
    name: str,
    xml: str,
    *,
    frame_skip: int,
    effort: float,
    hidden: int,
    initial_state: Callable,
    healthy: Callable[[Fields], Bool[Array, ""]] | None = None,
    velocity_limit: float = jnp.inf,
) -> Task:
    """Builds a task that rewards moving along x.

    reward = change of x / time + (1 if healthy) - effort * |action|^2. The first `hidden` positions are not observed.
    """

    def observation(model: Model, data: Fields):
        return jnp.concatenate([data.qpos[hidden:], jnp.clip(data.qvel, -velocity_limit, velocity_limit)])

    def reward(model: Model, data: Fields, action):
        forward = data.change.qpos[0] / timestep(model, frame_skip)
        alive = healthy(data) if healthy else 0.0
        return forward + alive - effort_cost(effort, action)

    def terminated(model: Model, data: Fields):
        return ~healthy(data) if healthy else False

    return Task(
        name=name,
        xml=asset(xml),
        frame_skip=frame_skip,
        episode_length=1000,
        initial_state=initial_state,
        observation=observation,
        reward=reward,
        terminated=terminated,
        changes=("qpos",),
    )


def half_cheetah() -> Task:
    return _runner(
        "HalfCheetah-v5",
        "half_cheetah.xml",
        frame_skip=5,
        effort=0.1,
        hidden=1,
        initial_state=around_default(0.1, 0.1, normal_velocity=True),
    )


def swimmer() -> Task:
    return _runner(
        "Swimmer-v5",
        "swimmer.xml",
        frame_skip=4,
        effort=1e-4,
        hidden=2,
        initial_state=around_default(0.1, 0.1),
    )


def hopper() -> Task:
    def healthy(data: Fields):
        rest = jnp.concatenate([data.qpos, data.qvel])[2:]
        upright = (data.qpos[1] > 0.7) & inside(-0.2, data.qpos[2], 0.2)
        return upright & jnp.all(inside(-100.0, rest, 100.0))

    return _runner(
        "Hopper-v5",
        "hopper.xml",
        frame_skip=4,
        effort=1e-3,
        hidden=1,
        initial_state=around_default(5e-3, 5e-3),
        healthy=healthy,
        velocity_limit=10.0,
    )


def walker2d() -> Task:
    def healthy(data: Fields):
        return inside(0.8, data.qpos[1], 2.0) & inside(-1.0, data.qpos[2], 1.0)

    return _runner(
        "Walker2d-v5",
        "walker2d_v5.xml",
        frame_skip=4,
        effort=1e-3,
        hidden=1,
        initial_state=around_default(5e-3, 5e-3),
        healthy=healthy,
        velocity_limit=10.0,
    )
