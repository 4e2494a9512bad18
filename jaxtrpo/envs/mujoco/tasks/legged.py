"""Tasks with a free-floating body: Ant, Humanoid and HumanoidStandup."""

from __future__ import annotations

import functools

import jax.numpy as jnp

from jaxtrpo.envs.mujoco.task import Fields, Task, timestep
from jaxtrpo.envs.mujoco.tasks.parts import Model, around_default, asset, effort_cost, inside


def ant(*, contact_forces: bool = True) -> Task:
    """Ant-v5, or without contact forces Ant-v4, which is closest to the task of most published results.

    Versions 2 and 3 had contact forces in the observation, too, but they were always zero.
    """
    frame_skip, torso = 5, 1

    def healthy(data: Fields):
        height = data.qpos[2]
        return (0.2 <= height) & (height <= 1.0)

    def forces(data: Fields):
        return jnp.clip(data.cfrc_ext, -1.0, 1.0)

    def observation(model: Model, data: Fields):
        contact = (forces(data)[1:].ravel(),) if contact_forces else ()
        return jnp.concatenate([data.qpos[2:], data.qvel, *contact])

    def reward(model: Model, data: Fields, action):
        forward = data.change.xpos[torso, 0] / timestep(model, frame_skip)
        # Version 4 gives the healthy reward even in the step that terminates.
        bonus = healthy(data) - 5e-4 * jnp.sum(forces(data) ** 2) if contact_forces else 1.0
        return forward + bonus - effort_cost(0.5, action)

    return Task(
        name="Ant-v5" if contact_forces else "Ant-v4",
        xml=asset("ant.xml"),
        frame_skip=frame_skip,
        episode_length=1000,
        initial_state=around_default(0.1, 0.1, normal_velocity=True),
        observation=observation,
        reward=reward,
        terminated=lambda model, data: ~healthy(data),
        fields=("qpos", "qvel", "xpos", *(("cfrc_ext",) if contact_forces else ())),
        changes=("xpos",),
    )


def _humanoid_observation(model: Model, data: Fields, *, first_body: int = 1, first_force: int = 6):
    # Version 5 omits body 0, the world, which has no inertia, and the first six generalised forces, which act on the
    # free root and are zero.
    return jnp.concatenate(
        [
            data.qpos[2:],
            data.qvel,
            data.cinert[first_body:].ravel(),
            data.cvel[first_body:].ravel(),
            data.qfrc_actuator[first_force:],
            data.cfrc_ext[first_body:].ravel(),
        ]
    )


_HUMANOID_FIELDS = ("qpos", "qvel", "cinert", "cvel", "qfrc_actuator", "cfrc_ext")


def humanoid(*, contact_cost: bool = True) -> Task:
    """Humanoid-v5, or without contact cost Humanoid-v4, which is closest to the task of most published results.

    Versions 2 and 3 had the cost, but it was always zero. Version 4 also observes 28 numbers that are always zero.
    """
    frame_skip = 5

    def healthy(data: Fields):
        return inside(1.0, data.qpos[2], 2.0)

    def reward(model: Model, data: Fields, action):
        # The subtree of body 0 is the whole model.
        forward = data.change.subtree_com[0, 0] / timestep(model, frame_skip)
        contact = jnp.minimum(5e-7 * jnp.sum(data.cfrc_ext**2), 10.0)
        # Version 4 gives the healthy reward even in the step that terminates.
        bonus = 5.0 * healthy(data) - contact if contact_cost else 5.0
        return 1.25 * forward + bonus - effort_cost(0.1, action)

    full_observation = functools.partial(_humanoid_observation, first_body=0, first_force=0)
    return Task(
        name="Humanoid-v5" if contact_cost else "Humanoid-v4",
        xml=asset("humanoid.xml"),
        frame_skip=frame_skip,
        episode_length=1000,
        initial_state=around_default(1e-2, 1e-2),
        observation=_humanoid_observation if contact_cost else full_observation,
        reward=reward,
        terminated=lambda model, data: ~healthy(data),
        fields=(*_HUMANOID_FIELDS, "subtree_com"),
        changes=("subtree_com",),
    )


def humanoid_standup() -> Task:
    def reward(model: Model, data: Fields, action):
        impact = jnp.minimum(0.5e-6 * jnp.sum(data.cfrc_ext**2), 10.0)
        return data.qpos[2] / float(model.opt.timestep) - effort_cost(0.1, action) - impact + 1.0

    return Task(
        name="HumanoidStandup-v5",
        xml=asset("humanoidstandup.xml"),
        frame_skip=5,
        episode_length=1000,
        initial_state=around_default(1e-2, 1e-2),
        observation=_humanoid_observation,
        reward=reward,
        fields=_HUMANOID_FIELDS,
    )
