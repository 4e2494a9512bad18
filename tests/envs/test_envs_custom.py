"""A custom environment, defined by MJCF text and three functions; the documentation shows what is between the marks."""

# [example
import jax
import jax.numpy as jnp

import jaxtrpo

PENDULUM = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <body>
      <joint name="hinge" axis="0 1 0" damping="0.05"/>
      <geom type="capsule" fromto="0 0 0  0 0 -0.5" size="0.04" mass="1"/>
    </body>
  </worldbody>
  <actuator>
    <motor joint="hinge" ctrlrange="-1 1"/>
  </actuator>
</mujoco>
"""


def initial_state(key, model):  # hanging down, nearly at rest
    return 0.1 * jax.random.normal(key, (1,)), jnp.zeros(1)


def observation(model, data):
    return jnp.concatenate([jnp.cos(data.qpos), jnp.sin(data.qpos), data.qvel])


def reward(model, data, action):  # 1 upright, -1 hanging down
    return -jnp.cos(data.qpos[0]) - 0.01 * action[0] ** 2


swing_up = jaxtrpo.Task(
    name="PendulumSwingUp",
    xml=PENDULUM,
    frame_skip=2,
    episode_length=250,
    initial_state=initial_state,
    observation=observation,
    reward=reward,
)
env = jaxtrpo.MujocoEnvironment(swing_up)
# example]

import functools  # noqa: E402
from pathlib import Path  # noqa: E402

import mujoco  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

from jaxtrpo import MjxEnvironment, MujocoEnvironment  # noqa: E402
from jaxtrpo.envs.mujoco import native  # noqa: E402

# Compiles in a quarter of the time.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def test_sizes_are_derived_from_model_and_functions():
    assert (env.name, env.observation_size, env.action_size, env.episode_length) == ("PendulumSwingUp", 3, 1, 250)
    assert (env.action_low, env.action_high) == (-1, 1)


def test_steps_match_plain_mujoco():
    num = 3
    data = [mujoco.MjData(mujoco.MjModel.from_xml_string(PENDULUM)) for _ in range(num)]
    state = jit(env.reset, static_argnums=1)(jax.random.PRNGKey(0), num)
    for d, obs in zip(data, np.asarray(state.obs), strict=True):
        d.qpos[0] = np.arctan2(obs[1], obs[0])
    step = jit(env.step)
    for action in np.random.default_rng(0).uniform(-1, 1, (60, num, 1)).astype(np.float32):
        state = step(state, action)
        for d, a in zip(data, action, strict=True):
            d.ctrl[:] = a
            mujoco.mj_step(d.model, d, swing_up.frame_skip)
        angle, speed = (np.array([getattr(d, name)[0] for d in data]) for name in ("qpos", "qvel"))
        np.testing.assert_allclose(state.obs, np.stack([np.cos(angle), np.sin(angle), speed], 1), atol=1e-5)
        np.testing.assert_allclose(state.reward, -np.cos(angle) - 0.01 * action[:, 0] ** 2, atol=1e-5)
    assert np.ptp(angle) > 0.05  # the pendulums moved, and differently


def test_episode_is_truncated_after_episode_length():
    short = MujocoEnvironment(swing_up._replace(episode_length=4))
    step, state = jit(short.step), jit(short.reset, static_argnums=1)(jax.random.PRNGKey(0), 2)
    truncated = []
    for _ in range(9):
        state = step(state, jnp.zeros((2, 1)))
        truncated.append(bool(state.truncated.all()))
    assert truncated == [False, False, False, True] * 2 + [False]


SERVO = PENDULUM.replace('<motor joint="hinge" ctrlrange="-1 1"/>', '<position name="servo" joint="hinge"/>')
SLEEP = '<option><flag sleep="enable"/></option>'
STATUE = """
<mujoco>
  <worldbody><body><site name="s"/><geom size="1"/></body></worldbody>
  <actuator><general site="s" ctrlrange="-1 1"/></actuator>
</mujoco>
"""


@pytest.mark.parametrize("engine", [MujocoEnvironment, MjxEnvironment])
def test_actuator_without_ctrlrange_is_limited_with_a_warning(engine):
    with pytest.warns(UserWarning, match=r"actuators without ctrlrange \(servo\) are limited to \[-1, 1\]"):
        unlimited = engine(swing_up._replace(xml=SERVO))
    assert (unlimited.action_low, unlimited.action_high) == (-1, 1)
    limited = engine(swing_up._replace(xml=SERVO.replace("joint=", 'ctrlrange="-3 3" joint=')))  # without a warning
    assert (limited.action_low, limited.action_high) == (-3, 3)


@pytest.mark.parametrize("how", [str, Path])
def test_mjcf_file_is_equivalent_to_its_text(tmp_path, how):
    path = tmp_path / "pendulum.xml"
    path.write_text(PENDULUM)
    from_file = MujocoEnvironment(swing_up._replace(xml=how(path)))
    qpos, qvel, mask = np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32), np.ones(2, bool)
    start = [e.engine.reset(e.engine.blank(2), mask, qpos, qvel)[0] for e in (env, from_file)]
    moved = [e.engine.step(b, qvel)[0] for e, b in zip((env, from_file), start, strict=True)]
    np.testing.assert_array_equal(*moved)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"xml": PENDULUM.replace("damping", "dampnig")}, "cannot load the MJCF.*dampnig"),
        ({"xml": "<mujoco"}, "cannot load the MJCF"),
        ({"xml": "nowhere/pendulum.xml"}, "no such MJCF file: nowhere/pendulum.xml"),
        ({"fields": ("qpos", "qvle")}, "Task.fields: 'qvle' is not an MjData field of float64 numbers"),
        ({"fields": ("qpos", "qvel", "contact")}, "Task.fields: 'contact'"),
        ({"fields": ("qpos", "qvel", "energy")}, 'computes .energy. only with <flag energy="enable"/> in the MJCF'),
        ({"fields": ("qpos", "qvel", "qfrc_inverse")}, 'computes .qfrc_inverse. only with <flag fwdinv="enable"/>'),
        ({"changes": ("xpos",)}, "Task.changes: 'xpos' must also be in Task.fields"),
        ({"xml": Path("nowhere/pendulum.xml")}, "no such MJCF file: nowhere/pendulum.xml"),
        ({"xml": PENDULUM.encode()}, "xml=b.* must be the path of an MJCF file, or MJCF text"),
        ({"xml": PENDULUM.replace("motor", "position").replace("actuator", "custom")}, "cannot load the MJCF"),
        ({"xml": PENDULUM.split("<actuator>")[0] + "</mujoco>"}, "has no actuators.*add an <actuator>"),
        ({"xml": STATUE}, "has no joints.*add a <joint>"),
        ({"frame_skip": 0}, "frame_skip=0 must be a whole number of at least 1"),
        ({"frame_skip": 1.5}, "frame_skip=1.5 must be a whole number of at least 1"),
        ({"episode_length": 2**31}, "episode_length=2147483648 must be at most 2147483647"),
        ({"observation": lambda model, data: data.qpos * 1j}, "observation must hold real numbers, not complex64"),
        ({"xml": PENDULUM.replace("<worldbody>", SLEEP + "<worldbody>")}, "do not support sleep; remove <flag sleep"),
        ({"episode_length": 0}, "episode_length=0 must be a whole number of at least 1"),
        ({"observation": lambda model, data: jnp.zeros(0)}, "the observation is empty"),
        ({"observation": lambda model, data: (data.qpos, data.qvel)}, "observation must be one array, not tuple"),
        ({"observation": lambda model, data: None}, "observation must be one array, not NoneType"),
        ({"initial_state": lambda key, model: jnp.zeros(2)}, r"initial_state must return two arrays \(qpos, qvel\)"),
        ({"initial_state": lambda key, model: (jnp.zeros(2), jnp.zeros(1))}, r"qpos has shape \(2,\), expected \(1,\)"),
        ({"reward": lambda model, data, action: data.qpos}, r"reward has shape \(1,\), expected \(\)"),
        ({"terminated": lambda model, data: data.qvel > 1}, r"terminated has shape \(1,\), expected \(\)"),
        ({"observation": lambda model, data: data.qvel[0]}, r"observation has shape \(\), expected"),
    ],
)
@pytest.mark.parametrize("engine", [MujocoEnvironment, MjxEnvironment])
def test_task_that_does_not_fit_its_model_is_rejected(changed, message, engine):
    with pytest.raises(ValueError, match=message):
        engine(swing_up._replace(**changed))


@pytest.mark.parametrize("engine", [jaxtrpo.MujocoEnvironment, jaxtrpo.MjxEnvironment])
def test_name_in_place_of_a_task_is_refused(engine):
    with pytest.raises(ValueError, match=r"^'Hopper-v5' must be a Task; jaxtrpo.make_env\(NAME\) makes environments"):
        engine("Hopper-v5")


def test_field_missing_from_batch_interface_is_rejected():
    with pytest.raises(ValueError, match="Task.fields: MuJoCo's batch interface does not provide 'efc_force'"):
        MujocoEnvironment(swing_up._replace(fields=("qpos", "qvel", "efc_force")))


def test_error_for_undeclared_field_names_task_fields():
    task = swing_up._replace(observation=lambda model, data: data.xpos.ravel())
    with pytest.raises(AttributeError, match="MjData field 'xpos' is not in Task.fields"):
        MujocoEnvironment(task)
    MujocoEnvironment(task._replace(fields=("qpos", "qvel", "xpos")))


def test_field_absent_from_model_is_empty():
    task = swing_up._replace(
        fields=("qpos", "qvel", "act", "sensordata"),
        observation=lambda model, data: jnp.concatenate([data.qpos, data.act, data.sensordata]),
    )
    env = MujocoEnvironment(task)
    state = env.step(env.reset(jax.random.PRNGKey(0), 2), np.ones((2, 1), np.float32))
    assert env.observation_size == 1 and np.isfinite(state.obs).all()


OF_FORCES = ("cacc", "cfrc_int", "cfrc_ext")
LATER = ("qpos", "qvel", "time", *OF_FORCES, "subtree_linvel", "subtree_angmom")
SENSOR = '<sensor><accelerometer site="tip"/></sensor></mujoco>'
SENSING = PENDULUM.replace("</body>", '<site name="tip" pos="0 0 -0.5"/></body>').replace("</mujoco>", SENSOR)


def everything(fields, xml=PENDULUM):
    return swing_up._replace(
        xml=xml,
        fields=fields,
        observation=lambda model, data: jnp.concatenate([jnp.ravel(data[name]) for name in fields]),
    )


def observed(data, fields):
    return np.concatenate([np.ravel(getattr(data, name)) for name in fields])


@pytest.mark.parametrize("xml", [PENDULUM, SENSING])
def test_fields_that_a_step_leaves_out_are_those_of_plain_mujoco(xml):
    """Also after a reset, for which those of the steps before are no matter."""
    env, model = MujocoEnvironment(everything(LATER, xml)), mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(model)
    state = first = env.reset(jax.random.PRNGKey(0), 1)
    for _ in range(20):
        data.qpos[:], data.qvel[:], data.time = state.obs[0, 0], state.obs[0, 1], state.obs[0, 2]
        state = env.step(state, np.ones((1, 1), np.float32))
        data.ctrl[:] = 1
        mujoco.mj_step(model, data, swing_up.frame_skip)
        mujoco.mj_rnePostConstraint(model, data)
        mujoco.mj_subtreeVel(model, data)
        np.testing.assert_allclose(state.obs[0], observed(data, LATER), rtol=1e-3, atol=1e-3)
    assert np.abs(state.obs[0]).max() > 5
    np.testing.assert_array_equal(env.reset(jax.random.PRNGKey(0), 1).obs, first.obs)
    data = mujoco.MjData(model)
    data.qpos[:] = first.obs[0, 0]
    mujoco.mj_forward(model, data)
    mujoco.mj_subtreeVel(model, data)
    np.testing.assert_allclose(first.obs[0], observed(data, LATER), rtol=1e-5, atol=1e-6)
    assert bool(np.any(data.cacc)) == (xml == SENSING)


def test_tasks_of_one_model_have_frame_skips_of_their_own():
    """Also the second one, whose model is known already."""
    for skip in (2, 5, 1):
        env = MujocoEnvironment(swing_up._replace(frame_skip=skip))
        state = env.reset(jax.random.PRNGKey(0), 1)
        data = mujoco.MjData(mujoco.MjModel.from_xml_string(PENDULUM))
        data.qpos[0], data.ctrl[0] = np.arctan2(state.obs[0, 1], state.obs[0, 0]), 1
        mujoco.mj_step(data.model, data, skip)
        speed = env.step(state, np.ones((1, 1), np.float32)).final_obs[0, 2]
        np.testing.assert_allclose(speed, data.qvel[0], atol=1e-5)


MOTOR = '<motor joint="hinge" ctrlrange="-1 1"/>'
FILTERED = PENDULUM.replace(
    MOTOR, '<general joint="hinge" dyntype="filter" dynprm="0.5" gainprm="1" ctrlrange="-1 1"/>'
)
YIELDING = PENDULUM.replace('damping="0.05"', 'damping="0.05" stiffness="50" springyield="0.05"')


@pytest.mark.parametrize(
    ("engine", "xml", "fields"),
    [
        (MujocoEnvironment, FILTERED, ("qpos", "qvel", "act")),
        (MjxEnvironment, FILTERED, ("qpos", "qvel", "act")),
        (MujocoEnvironment, YIELDING, ("qpos", "qvel")),
    ],
)
def test_whatever_a_simulation_remembers_is_carried_from_step_to_step(engine, xml, fields):
    """Activations of actuators, and how far springs have yielded; anew in every episode."""
    env = engine(everything(fields, xml)._replace(episode_length=70))
    state = jit(env.reset, static_argnums=1)(jax.random.PRNGKey(0), 2)
    model, first = mujoco.MjModel.from_xml_string(xml), np.array(state.obs)
    data = [mujoco.MjData(model) for _ in range(2)]
    for each, obs in zip(data, first, strict=True):
        each.qpos[:] = obs[0]
    step = jit(env.step)
    for _ in range(60):
        state = step(state, np.array([[1.0], [-0.7]], np.float32))
        for each, control in zip(data, (1.0, -0.7), strict=True):
            each.ctrl[:] = control
            mujoco.mj_step(model, each, swing_up.frame_skip)
    np.testing.assert_allclose(state.obs, [observed(each, fields) for each in data], rtol=2e-3, atol=2e-3)
    if model.na:
        assert min(abs(each.act[0]) for each in data) > 0.3
        for _ in range(10):  # the episode ends with the last of them
            state = step(state, np.ones((2, 1), np.float32))
        np.testing.assert_array_equal(state.obs[:, 2], 0)
    else:
        kind = int(mujoco.mjtState.mjSTATE_PLASTIC)
        yielded = np.zeros((2, mujoco.mj_stateSize(model, kind)))
        for each, row in zip(data, yielded, strict=True):
            mujoco.mj_getState(model, each, row, kind)
        assert np.all(np.abs(yielded) > 1e-3) and np.ptp(yielded) > 1e-3  # or nothing would be shown


def test_field_that_is_named_twice_is_refused():
    with pytest.raises(ValueError, match="^Task.fields: 'qpos' is given twice$"):
        MujocoEnvironment(swing_up._replace(fields=("qpos", "qvel", "qpos")))


def test_energy_is_computed_where_the_model_says_so():
    xml = PENDULUM.replace("<worldbody>", '<option><flag energy="enable"/></option><worldbody>')
    env = MujocoEnvironment(everything(("qpos", "energy"), xml))
    assert np.all(env.step(env.reset(jax.random.PRNGKey(0), 2), np.ones((2, 1), np.float32)).obs[:, 1] < 0)


BALL_JOINT = """
<mujoco>
  <worldbody><body><joint name="ball" type="ball"/><geom size="1" pos="0 0 1"/></body></worldbody>
  <actuator><orientation name="pose" joint="ball" kp="1"/><motor name="push" joint="ball"/></actuator>
</mujoco>
"""


def test_actuator_with_several_controls_is_named_once():
    task = swing_up._replace(
        xml=BALL_JOINT,
        initial_state=lambda key, model: (jnp.float32([1, 0, 0, 0]), jnp.zeros(3)),
        observation=lambda model, data: data.qvel,
    )
    with pytest.warns(UserWarning, match=r"actuators without ctrlrange \(pose, push\) are limited"):
        env = MujocoEnvironment(task)
    assert env.action_size == 4
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="does not support actuators with several controls"):
        MjxEnvironment(task)


def test_all_simulators_have_the_model_of_the_task():
    """Changes of the model of an environment come too late for some of them, and so are made for none."""
    env = MujocoEnvironment(swing_up._replace(frame_skip=3))
    env.model.opt.gravity[2] = 0
    state = env.reset(jax.random.PRNGKey(0), 2)
    both = env.step(state, np.ones((2, 1), np.float32))
    alone = env.step(jax.tree.map(lambda leaf: leaf[:1], state), np.ones((1, 1), np.float32))
    np.testing.assert_array_equal(alone.obs, both.obs[:1])


def test_callbacks_of_mujoco_are_refused():
    mujoco.set_mjcb_control(lambda model, data: None)
    try:
        with pytest.raises(ValueError, match=r"callback mjcb_control is set, .* mujoco.set_mjcb_control\(None\)"):
            MujocoEnvironment(swing_up)
    finally:
        mujoco.set_mjcb_control(None)


BOX = '<body pos="{x} {y} 0.09"><freejoint/><geom type="box" size="0.1 0.1 0.1"/></body>'
BOXES = """
<mujoco>
  <size memory="{memory}"/>
  <worldbody><geom type="plane" size="9 9 1"/>{boxes}
    <body pos="0 0 9"><joint name="hinge"/><geom size="0.1"/></body>
  </worldbody>
  <actuator><motor joint="hinge" ctrlrange="-1 1"/></actuator>
</mujoco>
"""


def boxes(memory):
    where = [BOX.format(x=0.5 * (number % 5), y=0.5 * (number // 5)) for number in range(25)]
    return swing_up._replace(
        xml=BOXES.format(memory=memory, boxes="".join(where)),
        initial_state=lambda key, model: (jnp.asarray(model.qpos0, jnp.float32), jnp.zeros(model.nv)),
        observation=lambda model, data: data.qpos,
        reward=lambda model, data, action: 0.0,
    )


def test_models_with_too_little_memory_say_so():
    def step(memory):
        env = MujocoEnvironment(boxes(memory))
        state = env.reset(jax.random.PRNGKey(0), 1)
        for _ in range(5):
            state = jax.block_until_ready(env.step(state, np.zeros((1, 1), np.float32)))
        return state

    assert not step("100M").invalid[0]
    native._warn_of_full_buffers.cache_clear()
    with pytest.warns(UserWarning, match="buffers of contacts or constraints are full.*<size memory="):
        assert not step("100K").invalid[0]
    with pytest.raises(jax.errors.JaxRuntimeError, match="out of memory.*<size memory="):
        step("40K")


def test_documentation_contains_this_example():
    path = Path(__file__)
    example = path.read_text().split("# [example\n")[1].split("# example]")[0].strip()
    assert example in (path.parents[2] / "docs" / "how-to" / "environment.md").read_text()
