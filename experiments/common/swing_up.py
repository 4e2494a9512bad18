"""A pendulum that hangs and is to be swung up, with too weak a motor to lift it at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxtrpo.envs.mujoco.environment import MujocoEnvironment
from jaxtrpo.envs.mujoco.task import Task

MJCF = """
<mujoco model="swing up">
  <option timestep="0.01" integrator="RK4"/>
  <worldbody>
    <body pos="0 0 1">
      <joint name="hinge" type="hinge" axis="0 1 0" damping="0.05"/>
      <geom type="capsule" fromto="0 0 0 0 0 0.6" size="0.02" mass="0.1"/>
      <geom type="sphere" pos="0 0 0.6" size="0.06" mass="0.5"/>
    </body>
  </worldbody>
  <actuator>
    <motor joint="hinge" gear="1.5" ctrlrange="-1 1" ctrllimited="true"/>
  </actuator>
</mujoco>
"""
# Gravity pulls with up to 9.81 (0.5 * 0.6 + 0.1 * 0.3) = 3.2 N m, of which the motor has less than half.


def swing_up() -> Task:
    """The angle is 0 where the pendulum stands; episodes are 5 s, and the reward is 1 a step at best."""

    def initial_state(key, model):
        for_angle, for_speed = jax.random.split(key)
        angle = jnp.pi + jax.random.uniform(for_angle, (1,), minval=-0.5, maxval=0.5)
        return angle, jax.random.uniform(for_speed, (1,), minval=-0.5, maxval=0.5)

    def reward(model, data, action):
        angle, speed = data.qpos[0], data.qvel[0]
        return jnp.cos(angle) - 0.01 * speed**2 - 0.01 * action[0] ** 2

    return Task(
        name="SwingUp",
        xml=MJCF,
        frame_skip=5,
        episode_length=100,
        initial_state=initial_state,
        observation=lambda model, data: jnp.concatenate([jnp.cos(data.qpos), jnp.sin(data.qpos), data.qvel]),
        reward=reward,
    )


def swing_up_environment() -> MujocoEnvironment:
    """For a training."""
    return MujocoEnvironment(swing_up())
