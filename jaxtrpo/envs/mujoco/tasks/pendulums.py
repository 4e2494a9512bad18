"""Tasks with a pole on a cart: InvertedPendulum and InvertedDoublePendulum."""

from __future__ import annotations

import jax.numpy as jnp

from jaxtrpo.envs.mujoco.task import Fields, Task
from jaxtrpo.envs.mujoco.tasks.parts import Model, around_default, asset


def inverted_pendulum() -> Task:
    def fallen(data: Fields):
        return jnp.abs(data.qpos[1]) > 0.2

    return Task(
        name="InvertedPendulum-v5",
        xml=asset("inverted_pendulum.xml"),
        frame_skip=2,
        episode_length=1000,
        initial_state=around_default(0.01, 0.01),
        observation=lambda model, data: jnp.concatenate([data.qpos, data.qvel]),
        reward=lambda model, data, action: ~fallen(data),
        terminated=lambda model, data: fallen(data),
    )


def inverted_double_pendulum() -> Task:
    def fallen(data: Fields):
        return data.site_xpos[0, 2] <= 1.0

    def observation(model: Model, data: Fields):
        angles = data.qpos[1:]
        return jnp.concatenate(
            [
                data.qpos[:1],
                jnp.sin(angles),
                jnp.cos(angles),
                jnp.clip(data.qvel, -10.0, 10.0),
                jnp.clip(data.qfrc_constraint[:1], -10.0, 10.0),
            ]
        )

    def reward(model: Model, data: Fields, action):
        x, _, height = data.site_xpos[0]
        distance = 0.01 * x**2 + (height - 2.0) ** 2
        speed = 1e-3 * data.qvel[1] ** 2 + 5e-3 * data.qvel[2] ** 2
        return 10.0 * ~fallen(data) - distance - speed

    return Task(
        name="InvertedDoublePendulum-v5",
        xml=asset("inverted_double_pendulum.xml"),
        frame_skip=5,
        episode_length=1000,
        initial_state=around_default(0.1, 0.1, normal_velocity=True),
        observation=observation,
        reward=reward,
        terminated=lambda model, data: fallen(data),
        fields=("qpos", "qvel", "qfrc_constraint", "site_xpos"),
    )
