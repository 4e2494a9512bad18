"""The eleven MuJoCo tasks of Gymnasium, version 5, and Ant's version 4, as data and pure functions.

Models are Gymnasium's own MJCF files; rewards, terminations, time limits and distributions of first states follow its
documentation (Towers et al. 2024, https://gymnasium.farama.org/environments/mujoco). Its observations and rewards read
derived quantities (body positions, contact forces, ...) as `mj_step` leaves them, one substep behind the state; so do
ours.
"""

from __future__ import annotations

import functools
import importlib.util
import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import mujoco
from jaxtyping import Array, Bool, Float, UInt32

from jaxtrpo.envs.mujoco.task import Fields, Task, timestep

Model = mujoco.MjModel
Key = UInt32[Array, "2"]


def _asset(name: str) -> str:
    # Found without importing gymnasium.envs.mujoco, which needs rendering packages that we do not.
    spec = importlib.util.find_spec("gymnasium")
    assert spec is not None and spec.origin is not None
    return str(pathlib.Path(spec.origin).parent / "envs" / "mujoco" / "assets" / name)


def _noise(key: Key, size: int) -> Float[Array, " size"]:
    """Uniform in [-1, 1]. One draw a reset, cut up by the tasks: every further one costs compile time."""
    return jax.random.uniform(key, (size,), minval=-1.0, maxval=1.0)


def _normal(uniform: Float[Array, "..."]) -> Float[Array, "..."]:
    """Standard normal numbers of uniform ones in [-1, 1], by the inverse of their distribution function."""
    return 2**0.5 * jax.scipy.special.erfinv(jnp.clip(uniform, -1 + 1e-7, 1 - 1e-7))


def _around_default(position_scale: float, velocity_scale: float, *, normal_velocity: bool = False):
    """First states: the model's own, plus noise; on positions uniform, on velocities uniform or normal."""

    def initial_state(key: Key, model: Model) -> tuple[Float[Array, " nq"], Float[Array, " nv"]]:
        noise = _noise(key, model.nq + model.nv)
        qpos = jnp.asarray(model.qpos0, jnp.float32) + position_scale * noise[: model.nq]
        velocity = noise[model.nq :]
        return qpos, velocity_scale * (_normal(velocity) if normal_velocity else velocity)

    return initial_state


def _effort(weight: float, action: Float[Array, " action"]) -> Float[Array, ""]:
    return weight * jnp.sum(action**2)


def _inside(low: float, value: Float[Array, "..."], high: float) -> Bool[Array, "..."]:
    return (low < value) & (value < high)


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
    """The tasks that pay for moving along x: HalfCheetah, Swimmer, Hopper, Walker2d.

    reward = change of x / time + (1 if healthy) - effort * |action|^2. The first `hidden` positions are not observed.
    """

    def observation(model: Model, data: Fields):
        return jnp.concatenate([data.qpos[hidden:], jnp.clip(data.qvel, -velocity_limit, velocity_limit)])

    def reward(model: Model, data: Fields, action):
        forward = data.change.qpos[0] / timestep(model, frame_skip)
        alive = healthy(data) if healthy else 0.0
        return forward + alive - _effort(effort, action)

    def terminated(model: Model, data: Fields):
        return ~healthy(data) if healthy else False

    return Task(
        name=name,
        xml=_asset(xml),
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
        initial_state=_around_default(0.1, 0.1, normal_velocity=True),
    )


def swimmer() -> Task:
    return _runner(
        "Swimmer-v5",
        "swimmer.xml",
        frame_skip=4,
        effort=1e-4,
        hidden=2,
        initial_state=_around_default(0.1, 0.1),
    )


def hopper() -> Task:
    def healthy(data: Fields):
        rest = jnp.concatenate([data.qpos, data.qvel])[2:]
        upright = (data.qpos[1] > 0.7) & _inside(-0.2, data.qpos[2], 0.2)
        return upright & jnp.all(_inside(-100.0, rest, 100.0))

    return _runner(
        "Hopper-v5",
        "hopper.xml",
        frame_skip=4,
        effort=1e-3,
        hidden=1,
        initial_state=_around_default(5e-3, 5e-3),
        healthy=healthy,
        velocity_limit=10.0,
    )


def walker2d() -> Task:
    def healthy(data: Fields):
        return _inside(0.8, data.qpos[1], 2.0) & _inside(-1.0, data.qpos[2], 1.0)

    return _runner(
        "Walker2d-v5",
        "walker2d_v5.xml",
        frame_skip=4,
        effort=1e-3,
        hidden=1,
        initial_state=_around_default(5e-3, 5e-3),
        healthy=healthy,
        velocity_limit=10.0,
    )


def ant(*, contact_forces: bool = True) -> Task:
    """Version 5; without contact forces version 4, which most published results come nearest to.

    Versions 2 and 3 had them in the observation too, but always zero.
    """
    frame_skip, torso = 5, 1

    def healthy(data: Fields):
        height = data.qpos[2]
        return (0.2 <= height) & (height <= 1.0)

    def forces(data: Fields):
        return jnp.clip(data.cfrc_ext, -1.0, 1.0)

    def observation(model: Model, data: Fields):
        felt = (forces(data)[1:].ravel(),) if contact_forces else ()
        return jnp.concatenate([data.qpos[2:], data.qvel, *felt])

    def reward(model: Model, data: Fields, action):
        forward = data.change.xpos[torso, 0] / timestep(model, frame_skip)
        # Version 4 pays for health in the step that loses it, too.
        bonus = healthy(data) - 5e-4 * jnp.sum(forces(data) ** 2) if contact_forces else 1.0
        return forward + bonus - _effort(0.5, action)

    return Task(
        name="Ant-v5" if contact_forces else "Ant-v4",
        xml=_asset("ant.xml"),
        frame_skip=frame_skip,
        episode_length=1000,
        initial_state=_around_default(0.1, 0.1, normal_velocity=True),
        observation=observation,
        reward=reward,
        terminated=lambda model, data: ~healthy(data),
        fields=("qpos", "qvel", "xpos", *(("cfrc_ext",) if contact_forces else ())),
        changes=("xpos",),
    )


def _humanoid_observation(model: Model, data: Fields):
    # World is body 0 and has no inertia; the first six generalised forces act on the free root and are zero.
    return jnp.concatenate(
        [
            data.qpos[2:],
            data.qvel,
            data.cinert[1:].ravel(),
            data.cvel[1:].ravel(),
            data.qfrc_actuator[6:],
            data.cfrc_ext[1:].ravel(),
        ]
    )


_HUMANOID_FIELDS = ("qpos", "qvel", "cinert", "cvel", "qfrc_actuator", "cfrc_ext")


def humanoid() -> Task:
    frame_skip = 5

    def healthy(data: Fields):
        return _inside(1.0, data.qpos[2], 2.0)

    def reward(model: Model, data: Fields, action):
        # Body 0 carries the whole tree, so its subtree's centre of mass is that of the model.
        forward = data.change.subtree_com[0, 0] / timestep(model, frame_skip)
        contact = jnp.minimum(5e-7 * jnp.sum(data.cfrc_ext**2), 10.0)
        return 1.25 * forward + 5.0 * healthy(data) - _effort(0.1, action) - contact

    return Task(
        name="Humanoid-v5",
        xml=_asset("humanoid.xml"),
        frame_skip=frame_skip,
        episode_length=1000,
        initial_state=_around_default(1e-2, 1e-2),
        observation=_humanoid_observation,
        reward=reward,
        terminated=lambda model, data: ~healthy(data),
        fields=(*_HUMANOID_FIELDS, "subtree_com"),
        changes=("subtree_com",),
    )


def humanoid_standup() -> Task:
    def reward(model: Model, data: Fields, action):
        impact = jnp.minimum(0.5e-6 * jnp.sum(data.cfrc_ext**2), 10.0)
        return data.qpos[2] / float(model.opt.timestep) - _effort(0.1, action) - impact + 1.0

    return Task(
        name="HumanoidStandup-v5",
        xml=_asset("humanoidstandup.xml"),
        frame_skip=5,
        episode_length=1000,
        initial_state=_around_default(1e-2, 1e-2),
        observation=_humanoid_observation,
        reward=reward,
        fields=_HUMANOID_FIELDS,
    )


def inverted_pendulum() -> Task:
    def fallen(data: Fields):
        return jnp.abs(data.qpos[1]) > 0.2

    return Task(
        name="InvertedPendulum-v5",
        xml=_asset("inverted_pendulum.xml"),
        frame_skip=2,
        episode_length=1000,
        initial_state=_around_default(0.01, 0.01),
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
        xml=_asset("inverted_double_pendulum.xml"),
        frame_skip=5,
        episode_length=1000,
        initial_state=_around_default(0.1, 0.1, normal_velocity=True),
        observation=observation,
        reward=reward,
        terminated=lambda model, data: fallen(data),
        fields=("qpos", "qvel", "qfrc_constraint", "site_xpos"),
    )


def reacher() -> Task:
    def initial_state(key: Key, model: Model):
        noise = _noise(key, model.nq + model.nv + 2)
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
        return -jnp.linalg.norm(to_target(model, data)) - _effort(1.0, action)

    return Task(
        name="Reacher-v5",
        xml=_asset("reacher.xml"),
        frame_skip=2,
        episode_length=50,
        initial_state=initial_state,
        observation=observation,
        reward=reward,
        fields=("qpos", "qvel", "xpos"),
    )


def _in_disc(noise: Float[Array, "2"], radius: float) -> Float[Array, "2"]:
    """Uniform in a disc: what Gymnasium's rejection from a square gives, without a loop."""
    distance = radius * jnp.sqrt(0.5 * (noise[0] + 1.0))
    angle = jnp.pi * noise[1]
    return distance * jnp.stack([jnp.cos(angle), jnp.sin(angle)])


def pusher() -> Task:
    def initial_state(key: Key, model: Model):
        # Gymnasium draws the object from a rectangle until it is more than 0.17 from the goal. More than half of the
        # rectangle is, so 32 draws all fail with probability 1e-10; the first is then taken as it is.
        draws = 32
        noise = _noise(key, model.nv + 2 * draws)
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
        hand, thing, goal = bodies(model, data)
        return -0.5 * jnp.linalg.norm(thing - hand) - jnp.linalg.norm(thing - goal) - _effort(0.1, action)

    return Task(
        name="Pusher-v5",
        xml=_asset("pusher_v5.xml"),
        frame_skip=5,
        episode_length=100,
        initial_state=initial_state,
        observation=observation,
        reward=reward,
        fields=("qpos", "qvel", "xpos"),
    )


TASKS: dict[str, Callable[[], Task]] = {
    "Reacher-v5": reacher,
    "Pusher-v5": pusher,
    "InvertedPendulum-v5": inverted_pendulum,
    "InvertedDoublePendulum-v5": inverted_double_pendulum,
    "HalfCheetah-v5": half_cheetah,
    "Hopper-v5": hopper,
    "Swimmer-v5": swimmer,
    "Walker2d-v5": walker2d,
    "Ant-v4": functools.partial(ant, contact_forces=False),
    "Ant-v5": ant,
    "Humanoid-v5": humanoid,
    "HumanoidStandup-v5": humanoid_standup,
}
