"""Tasks in which an arm has to reach a goal: Reacher and Pusher."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxtrpo.envs.mujoco.task import Fields, Task
from jaxtrpo.envs.mujoco.tasks.parts import Key, Model, asset, effort_cost, uniform_noise


def reacher() -> Task:
    def initial_state(key: Key, model: Model):
        noise = uniform_noise(key, model.nq + model.nv + 2)
        qpos = jnp.asarray(model.qpos0, jnp.float32) + 0.1 * noise[: model.nq]
        target = _in_disc(noise[-2:], 0.2)
        qvel = 0.005 * noise[model.nq : -2]
        return qpos.at[-2:].set(target), qvel.at[-2:].set(0.0)

    def to_target(model: Model, data: Fields):
        return data.xpos[model.body("fingertip").id] - data.xpos[model.body("target").id]

    def observation(model: Model, data: Fields):
        angles = data.qpos[:2]
        return jnp.concatenate(
            [jnp.cos(angles), jnp.sin(angles), data.qpos[2:], data.qvel[:2], to_target(model, data)[:2]]
        )

    def reward(model: Model, data: Fields, action):
        return -jnp.linalg.norm(to_target(model, data)) - effort_cost(1.0, action)

    return Task(
        name="Reacher-v5",
        xml=asset("reacher.xml"),
        frame_skip=2,
        episode_length=50,
        initial_state=initial_state,
        observation=observation,
        reward=reward,
        fields=("qpos", "qvel", "xpos"),
    )


def _in_disc(noise: Float[Array, "2"], radius: float) -> Float[Array, "2"]:
    """Maps uniform noise to a uniform point in a disc; Gymnasium samples the same distribution by rejection."""
    distance = radius * jnp.sqrt(0.5 * (noise[0] + 1.0))
    angle = jnp.pi * noise[1]
    return distance * jnp.stack([jnp.cos(angle), jnp.sin(angle)])


def pusher() -> Task:
    def initial_state(key: Key, model: Model):
        # Gymnasium redraws the object's position in a rectangle until it is more than 0.17 from the goal. That is true
        # for more than half of the area, so all of 32 draws fail with probability 1e-10; then the first is used.
        draws = 32
        noise = uniform_noise(key, model.nv + 2 * draws)
        places = jnp.array([-0.15, 0.0]) + jnp.array([0.15, 0.2]) * noise[model.nv :].reshape(draws, 2)
        position = places[jnp.argmax(jnp.linalg.norm(places, axis=-1) > 0.17)]
        qpos = jnp.asarray(model.qpos0, jnp.float32).at[-4:].set(jnp.append(position, jnp.zeros(2)))
        qvel = 0.005 * noise[: model.nv]
        return qpos, qvel.at[-4:].set(0.0)

    def bodies(model: Model, data: Fields):
        return tuple(data.xpos[model.body(name).id] for name in ("tips_arm", "object", "goal"))

    def observation(model: Model, data: Fields):
        return jnp.concatenate([data.qpos[:7], data.qvel[:7], *bodies(model, data)])

    def reward(model: Model, data: Fields, action):
        hand, obj, goal = bodies(model, data)
        return -0.5 * jnp.linalg.norm(obj - hand) - jnp.linalg.norm(obj - goal) - effort_cost(0.1, action)

    return Task(
        name="Pusher-v5",
        xml=asset("pusher_v5.xml"),
        frame_skip=5,
        episode_length=100,
        initial_state=initial_state,
        observation=observation,
        reward=reward,
        fields=("qpos", "qvel", "xpos"),
    )
