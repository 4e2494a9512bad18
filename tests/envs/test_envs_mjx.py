"""Tasks on MJX match the C engine and obey the environment protocol."""

import functools
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtrpo
from jaxtrpo.envs import base
from jaxtrpo.envs.registry import is_program, make_env

LIMIT = 6
# A ball that falls onto a plane, and a pendulum with a site, a joint limit and a motor.
BALL = """
<mujoco>
  <option timestep="0.004" {option}/>
  <worldbody>
    <geom type="plane" size="5 5 0.1"/>
    <body name="ball" pos="0 0 0.1">
      <freejoint/>
      <geom type="sphere" size="0.1" mass="1"/>
    </body>
    <body name="pendulum" pos="2 0 1">
      <joint name="hinge" axis="0 1 0" damping="0.05" range="-10 10" limited="true"/>
      <geom type="capsule" fromto="0 0 0  0 0 -0.5" size="0.04" mass="1" contype="0" conaffinity="0"/>
      <site name="tip" pos="0 0 -0.5"/>
    </body>
  </worldbody>
  <actuator>
    <motor joint="hinge" ctrlrange="-1 1" ctrllimited="true" gear="3"/>
    {actuators}
  </actuator>
</mujoco>
"""
FIELDS = (
    "qpos", "qvel", "xpos", "xquat", "xmat", "site_xpos", "subtree_com", "cinert", "cvel", "qfrc_actuator",
    "qfrc_constraint", "qfrc_bias", "qacc", "cfrc_ext", "geom_xpos", "actuator_force",
)  # fmt: skip


def ball(option: str = "", actuators: str = "", fields: tuple[str, ...] = FIELDS, **changed) -> jaxtrpo.Task:
    """Observes all of `fields`, rewards movement of the ball, and terminates when the ball is beyond 0.5."""

    def initial_state(key, model):
        noise = jax.random.uniform(key, (model.nq + model.nv,), minval=-1.0, maxval=1.0)
        qpos = jnp.asarray(model.qpos0, jnp.float32) + 0.02 * noise[: model.nq]  # quaternions that are not normalised
        return qpos, 0.5 * noise[model.nq :]

    task = jaxtrpo.Task(
        name="Ball",
        xml=BALL.format(option=option, actuators=actuators),
        frame_skip=3,
        episode_length=LIMIT,
        initial_state=initial_state,
        observation=lambda model, data: jnp.concatenate([jnp.ravel(data[name]) for name in fields]),
        reward=lambda model, data, action: data.change.qpos[0] / 0.012 - 0.1 * jnp.sum(action**2),
        terminated=lambda model, data: jnp.abs(data.qpos[0]) > 0.5,
        fields=fields,
        changes=("qpos",),
    )
    return task._replace(**changed)


def hinged(joint):
    return ball(xml=BALL.format(option="", actuators="").replace('damping="0.05"', joint))


def motor(more):
    return ball(xml=BALL.format(option="", actuators="").replace('gear="3"', f'gear="3" {more}'))


def geom(more):
    return ball(xml=BALL.format(option="", actuators="").replace('size="0.1" mass', f'size="0.1" {more} mass'))


def flag(name):
    xml = BALL.format(option="", actuators="")
    return ball(xml=xml.replace("<worldbody>", f'<option><flag {name}="disable"/></option><worldbody>'))


def test_forces_are_computed_whichever_of_them_is_asked_for():
    task = ball(fields=("qpos", "qvel", "cacc", "cfrc_int"))
    for ours, theirs in paired_states(made(task), jaxtrpo.MujocoEnvironment(task), steps=3):
        np.testing.assert_allclose(ours.final_obs, theirs.final_obs, atol=0.02, rtol=1e-3)
    assert np.abs(theirs.final_obs).max() > 5


SMALL = ball(fields=("qpos", "qvel"))


@functools.cache
def made(task: jaxtrpo.Task):
    """Returns an environment and its compiled functions; `step` may be traced only once."""
    env, traced = jaxtrpo.MjxEnvironment(task), []

    def step(state, action):
        traced.append(action.shape)
        assert len(traced) == 1
        return env.step(state, action)

    return env, jax.jit(env.reset, static_argnums=1), jax.jit(step)


def paired_states(ours, theirs, steps: int, num_envs: int = 4):
    """Yields the states of both engines for the same key and actions; `ours` are an environment and its functions."""
    key, rng = jax.random.PRNGKey(3), np.random.default_rng(0)
    ours, reset, step = ours
    their_step = jax.jit(theirs.step)
    a, b = reset(key, num_envs), jax.jit(theirs.reset, static_argnums=1)(key, num_envs)
    yield a, b
    for _ in range(steps):
        action = rng.uniform(ours.action_low, ours.action_high, (num_envs, ours.action_size)).astype(np.float32)
        a, b = step(a, action), their_step(b, action)
        yield a, b


def test_half_cheetah_matches_c_engine():
    ours, theirs = make_env("mjx:HalfCheetah-v5"), make_env("HalfCheetah-v5")
    assert isinstance(ours, base.Environment) and ours.name == "mjx:HalfCheetah-v5"
    for name in ("observation_size", "action_size", "episode_length", "seconds_per_step"):
        assert getattr(ours, name) == getattr(theirs, name)
    np.testing.assert_array_equal(ours.action_low, theirs.action_low)
    np.testing.assert_array_equal(ours.action_high, theirs.action_high)
    states = paired_states((ours, jax.jit(ours.reset, static_argnums=1), jax.jit(ours.step)), theirs, steps=4)
    first, first_of_c = next(states)
    np.testing.assert_allclose(first.obs, first_of_c.obs, atol=1e-6)  # the same noise, drawn in two programs
    moved = 0.0
    for number, (ours_now, theirs_now) in enumerate(states, 1):
        # Errors of float32 grow tenfold every few steps, where feet touch the ground.
        tolerance = 1e-5 * 4**number
        np.testing.assert_allclose(ours_now.final_obs, theirs_now.final_obs, atol=tolerance, rtol=tolerance)
        np.testing.assert_allclose(ours_now.reward, theirs_now.reward, atol=1e-4)
        moved = max(moved, np.abs(theirs_now.final_obs - first_of_c.obs).max())
    assert moved > 1


@pytest.mark.parametrize("option", ["", 'solver="PGS" iterations="200"'])
def test_fields_match_c_engine(option):
    task = ball(option)
    sizes = []
    for ours, theirs in paired_states(made(task), jaxtrpo.MujocoEnvironment(task), steps=LIMIT - 1):
        # Accelerations and forces are of the order of 100, and stiff contacts make them sensitive to positions.
        np.testing.assert_allclose(ours.final_obs, theirs.final_obs, atol=0.02, rtol=1e-3)
        np.testing.assert_allclose(ours.reward, theirs.reward, atol=1e-4)
        np.testing.assert_array_equal(ours.terminated, theirs.terminated)
        sizes.append(np.abs(theirs.final_obs).max())
    assert max(sizes) > 10  # the comparison is not vacuous


def test_positions_and_velocities_closely_match_c_engine():
    for ours, theirs in paired_states(made(SMALL), jaxtrpo.MujocoEnvironment(SMALL), steps=2 * LIMIT):
        np.testing.assert_allclose(ours.final_obs, theirs.final_obs, atol=2e-4)
        np.testing.assert_array_equal(ours.truncated, theirs.truncated)
        np.testing.assert_allclose(ours.obs, theirs.obs, atol=2e-4)  # including a second episode
        np.testing.assert_array_equal(ours.elapsed, theirs.elapsed)


def test_finished_episode_restarts_and_others_continue():
    env, reset, step = made(SMALL)
    first = reset(jax.random.PRNGKey(0), 4)
    away = first._replace(
        physics=first.physics._replace(
            state={**first.physics.state, "qpos": first.physics.state["qpos"].at[1, 0].set(3.0)}
        )
    )
    after = step(away, jnp.zeros((4, 1)))
    np.testing.assert_array_equal(after.terminated, [False, True, False, False])
    assert not after.truncated.any() and not after.invalid.any()
    assert after.final_obs[1, 0] > 2.9 and abs(after.obs[1, 0]) < 0.1 and after.obs[1, 0] != first.obs[1, 0]
    np.testing.assert_array_equal(after.physics.state["qpos"], after.obs[:, :8])  # the engine was reset, too
    np.testing.assert_array_equal(after.physics.state["time"] > 0, [True, False, True, True])
    np.testing.assert_array_equal(after.physics.before["qpos"], after.obs[:, :8])
    others = np.array([0, 2, 3])
    np.testing.assert_array_equal(after.obs[others], after.final_obs[others])
    for _ in range(LIMIT - 1):
        after = step(after, jnp.zeros((4, 1)))
    np.testing.assert_array_equal(after.truncated, [True, False, True, True])


@pytest.mark.parametrize("action", [np.nan, np.inf])
def test_invalid_environment_is_reset_without_affecting_others(action):
    env, reset, step = made(SMALL)
    first = reset(jax.random.PRNGKey(0), 4)
    after = step(first, np.float32([[0.3], [action], [-0.3], [0.1]]))
    np.testing.assert_array_equal(after.invalid, [False, True, False, False])
    np.testing.assert_array_equal(after.truncated, [False, True, False, False])
    assert after.reward[1] == 0
    np.testing.assert_array_equal(after.final_obs[1], first.obs[1])
    chex.assert_tree_all_finite(after)
    theirs = jaxtrpo.MujocoEnvironment(SMALL)
    of_c = theirs.step(theirs.reset(jax.random.PRNGKey(0), 4), np.float32([[0.3], [action], [-0.3], [0.1]]))
    np.testing.assert_array_equal(after.invalid, of_c.invalid)


def test_state_that_is_too_large_to_simulate_is_invalid():
    """Although all numbers are finite, and the task does not see them."""
    task = SMALL._replace(
        observation=lambda model, data: jnp.clip(data.qvel, -1, 1), terminated=lambda model, data: False
    )
    env, reset, step = made(task)
    state = reset(jax.random.PRNGKey(0), 4)
    qvel = state.physics.state["qvel"].at[1, 0].set(1e12)
    state = state._replace(physics=state.physics._replace(state={**state.physics.state, "qvel": qvel}))
    np.testing.assert_array_equal(step(state, jnp.zeros((4, 1))).invalid, [False, True, False, False])


def test_environment_does_not_depend_on_number_of_environments():
    env, reset, step = made(SMALL)
    few, many = reset(jax.random.PRNGKey(0), 4), jax.jit(env.reset, static_argnums=1)(jax.random.PRNGKey(0), 7)
    more = jax.jit(env.step)
    for action in np.random.default_rng(0).uniform(-1, 1, (3, 7, 1)).astype(np.float32):
        few, many = step(few, action[:4]), more(many, action)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[:4], rtol=1e-5, atol=1e-5), few, jax.device_get(many))


def test_several_trainings_run_as_one_program():
    env = made(SMALL)[0]
    assert is_program(env) and is_program("mjx:HalfCheetah-v5")
    sizes = dict(total_steps=256, steps_per_update=128, num_envs=8, actors=1, progress=False)
    results = jaxtrpo.train_many(env, seeds=[0, 1], algorithm="npg", critic="none", policy="mlp(hidden=(8,))", **sizes)
    for result in results:
        assert result.metrics["env_steps"][-1] == 256 and result.metrics["invalid_steps"].sum() == 0
        assert result.metrics["episodes"].sum() > 20
        assert result.metrics["kl"][-1] > 0


def test_renderer_receives_state_of_simulation(monkeypatch):
    env, reset, _ = made(SMALL)
    state = jax.device_get(reset(jax.random.PRNGKey(0), 2))
    rendered = []
    monkeypatch.setattr("jaxtrpo.envs.mujoco.mjx.render", lambda model, layout, states, *size: rendered.extend(states))
    env.render([jax.tree.map(lambda leaf: leaf[1], state.physics)], 32, 24)
    numbers = rendered[0].view(np.float64)
    model = env.model
    assert len(numbers) == 1 + model.nq + 2 * model.nv == sum(part.stop - part.start for part in env.layout.carried)
    np.testing.assert_array_equal(numbers[: 1 + model.nq + model.nv], [0, *state.obs[1]])


SWIMS = BALL.format(option="", actuators="").replace('size="0.1" mass', 'fluidshape="ellipsoid" size="0.1" mass')
EARLY = '<general joint="hinge" dyntype="filter" dynprm="1" actearly="true" ctrlrange="-1 1"/>'
DELAYED = '<motor joint="hinge" ctrlrange="-1 1" delay="0.02" nsample="8"/>'


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_env("mjx:HalfCheeta"), "unknown environment 'mjx:HalfCheeta'; did you mean mjx:HalfCheetah-v5"),
        (lambda: make_env("mjx:Hopper-v5", impl="wrap"), "unknown implementation of MJX 'wrap'; did you mean warp"),
        (lambda: made(ball('integrator="implicit"')), "^mjx:Ball: MJX with impl='jax' does not support .*IMPLICIT"),
        (lambda: made(ball(actuators=DELAYED)), "^mjx:Ball: MJX with impl='jax' does not support delays"),
        (lambda: made(ball('noslip_iterations="3"')), "does not support noslip_iterations"),
        (lambda: made(ball(xml=SWIMS)), "does not support the ellipsoid fluid model"),
        (lambda: made(hinged('damping="0 1"')), "does not support stiffness or damping that is a polynomial"),
        (lambda: made(hinged('stiffness="0 5"')), "does not support stiffness or damping that is a polynomial"),
        (lambda: made(hinged('stiffness="5" springyield="0.1"')), "does not support springs and tendons that yield"),
        (lambda: made(ball(actuators=EARLY)), "does not support actearly"),
        (lambda: made(geom('surfacevel="1 0 0"')), "does not support surface velocity or adhesion of geoms"),
        (lambda: made(motor('damping="1"')), "does not support damping or armature of actuators"),
        (lambda: made(motor('armature="1"')), "does not support damping or armature of actuators"),
        (lambda: made(ball('actuatorgroupdisable="3"')), "does not support groups of actuators that are disabled"),
        (lambda: made(geom('adhesion="1"')), "does not support surface velocity or adhesion of geoms"),
        (lambda: made(flag("spring")), "does not support springs without dampers, or dampers without springs"),
        (lambda: made(ball(fields=("qpos", "subtree_linvel"))), "does not compute the field 'subtree_linvel'"),
        (
            lambda: made(ball(fields=("qpos", "light_xpos"))),
            "does not compute the field 'light_xpos'",
        ),
        (lambda: made(ball(fields=("qpos", "qLD"))), "MJX with impl='jax' does not compute the field 'qLD'"),
        (lambda: made(ball(fields=("qpos", "M"))), "MJX with impl='jax' does not compute the field 'M'"),
        (lambda: made(ball(frame_skip=0)), "^Ball: frame_skip=0 must be a whole number of at least 1"),
        (lambda: made(ball(reward=lambda m, d, a: a)), r"^Ball: reward has shape \(1,\), expected \(\)"),
    ],
)
def test_unsupported_model_is_rejected_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_actions_of_wrong_shape_are_rejected():
    env, reset, _ = made(SMALL)
    with pytest.raises(ValueError, match=r"actions have shape \(4, 2\), expected \(4, 1\)"):
        env.step(reset(jax.random.PRNGKey(0), 4), jnp.zeros((4, 2)))


def test_missing_warp_error_names_install_command_and_mjx_prints_nothing():
    program = """
import sys
sys.modules["warp"] = None
from jaxtrpo.envs.registry import make_env
make_env("mjx:InvertedPendulum-v5")
try:
    make_env("mjx:InvertedPendulum-v5", impl="warp")
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "mjx:InvertedPendulum-v5: impl='warp' needs the package warp-lang: pip install warp-lang\n"
    assert done.stderr == ""
