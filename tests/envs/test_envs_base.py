"""Behaviour of all environments (`base.advance`) and of those on MuJoCo's C engine."""

import concurrent.futures
import functools
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from light_env import LightEnvironment
from probe import ProbeEnvironment

import jaxtrpo
from jaxtrpo.envs import abilities, base
from jaxtrpo.envs.base import action_space
from jaxtrpo.envs.fixed_starts import Repeated
from jaxtrpo.envs.mujoco.environment import MujocoEnvironment
from jaxtrpo.envs.mujoco.libmujoco import untimed
from jaxtrpo.envs.mujoco.tasks.runners import hopper
from jaxtrpo.envs.registry import environment_for, make_env

# One that terminates, one with a short time limit, one whose contact forces need an MjData per simulation.
NAMES = ("InvertedPendulum-v5", "Reacher-v5", "Ant-v5")
on_each = pytest.mark.parametrize("name", NAMES)

env_named = functools.cache(make_env)
# Compiles in a quarter of the time.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@functools.cache
def compiled(name: str):
    """(reset, step) of an environment."""
    env = env_named(name)
    return jit(env.reset, static_argnums=1), jit(env.step)


def random_actions(name: str, steps: int, num_envs: int) -> np.ndarray:
    env = env_named(name)
    shape = (steps, num_envs, env.action_size)
    return np.random.default_rng(0).uniform(env.action_low, env.action_high, shape).astype(np.float32)


def play(name: str, steps: int, num_envs: int) -> tuple[base.EnvState, np.ndarray]:
    """Returns the states `[time, env, ...]`, including the initial one, and the actions between them."""
    reset, step = compiled(name)
    actions = random_actions(name, steps, num_envs)
    states = [reset(jax.random.PRNGKey(0), num_envs)]
    for action in actions:
        states.append(step(states[-1], action))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *states), actions


def at(states: base.EnvState, where) -> base.EnvState:
    return jax.tree.map(lambda leaf: leaf[where], states)


def assert_identical(one, other) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


# ---- the end of a step, on an engine that counts steps ----


def reset_to_zero(keys, mask, physics):
    physics = jnp.where(mask, 0, physics)
    return physics, physics[:, None].astype(jnp.float32)


def counting_state(num_envs: int = 4) -> base.EnvState:
    return base.start(jax.random.PRNGKey(0), num_envs, reset_to_zero, jnp.zeros(num_envs, jnp.int32))


@functools.partial(jit, static_argnames="limit")
def count(state: base.EnvState, limit: int = 3, **changed) -> base.EnvState:
    physics = state.physics + 1
    moved = base.Transition(
        physics=physics,
        obs=physics[:, None].astype(jnp.float32),
        reward=jnp.ones(len(physics)),
        terminated=jnp.zeros(len(physics), bool),
        finite=jnp.ones(len(physics), bool),
    )
    return base.advance(state, moved._replace(**changed), reset_to_zero, limit)


def test_time_limit_truncates_after_exactly_episode_length_steps():
    states = [counting_state()]
    for _ in range(7):
        states.append(count(states[-1]))
    assert [bool(s.truncated.all()) for s in states] == [False, False, False, True, False, False, True, False]
    assert not any(s.terminated.any() or s.invalid.any() for s in states)
    assert [int(s.elapsed[0]) for s in states] == [0, 1, 2, 0, 1, 2, 0, 1]


def test_termination_takes_precedence_over_time_limit():
    state = count(counting_state(), limit=1, terminated=jnp.array([True, False, True, False]))
    np.testing.assert_array_equal(state.terminated, [True, False, True, False])
    np.testing.assert_array_equal(state.truncated, [False, True, False, True])


def test_finished_episode_restarts_with_new_key_and_others_continue():
    before = count(counting_state())
    after = count(before, terminated=jnp.array([False, True, False, False]))
    np.testing.assert_array_equal(after.obs[:, 0], [2, 0, 2, 2])
    np.testing.assert_array_equal(after.final_obs[:, 0], [2, 2, 2, 2])
    np.testing.assert_array_equal(after.elapsed, [2, 0, 2, 2])
    np.testing.assert_array_equal((after.key != before.key).any(axis=1), [False, True, False, False])


def test_key_of_initial_state_is_not_reused():
    used = []
    base.start(jax.random.PRNGKey(0), 4, lambda keys, *_: (used.append(keys), reset_to_zero(keys, *_))[1], jnp.zeros(4))
    carried = counting_state().key
    assert len({tuple(key) for key in np.concatenate([used[0], carried]).tolist()}) == 8


@pytest.mark.parametrize(
    "broken",
    [
        {"finite": jnp.array([True, False, True, True])},
        {"obs": jnp.array([[1.0], [jnp.nan], [1.0], [1.0]])},
        {"obs": jnp.array([[1.0], [-1e11], [1.0], [1.0]])},
        {"reward": jnp.array([1.0, jnp.inf, 1.0, 1.0])},
        {"reward": jnp.array([1.0, jnp.nan, 1.0, 1.0]), "terminated": jnp.ones(4, bool)},
    ],
)
def test_step_that_is_not_finite_is_invalid(broken):
    before = count(counting_state(), limit=9)._replace(obs=jnp.full((4, 1), 7.0))
    after = count(before, limit=9, **broken)
    np.testing.assert_array_equal(after.invalid, [False, True, False, False])
    assert after.truncated[1] and not after.terminated[1]
    assert after.reward[1] == 0
    assert after.final_obs[1, 0] == 7  # the observation before the step
    assert after.obs[1, 0] == 0 and after.elapsed[1] == 0
    chex.assert_tree_all_finite(after)
    np.testing.assert_array_equal(np.delete(after.reward, 1), 1)


def test_key_does_not_depend_on_number_of_environments():
    key = jax.random.PRNGKey(5)
    np.testing.assert_array_equal(base.env_keys(key, 3), base.env_keys(key, 10)[:3])
    np.testing.assert_array_equal(base.env_keys(key, 3), base.env_keys(jax.random.key(5), 3))
    assert len(np.unique(base.env_keys(key, 1000), axis=0)) == 1000


# ---- the C engine ----


def test_reacher_is_truncated_every_fifty_steps():
    states, _ = play("Reacher-v5", 105, 2)
    assert np.flatnonzero(states.truncated[:, 0]).tolist() == [50, 100]
    assert not states.terminated.any()


def test_finished_episode_has_new_obs_and_keeps_final_obs():
    states, _ = play("InvertedPendulum-v5", 60, 4)
    done = states.terminated
    assert done.any()
    assert np.abs(states.obs[done]).max() <= 0.01  # initial poles are this close to upright
    assert np.abs(states.final_obs[done][:, 1]).min() > 0.2  # and episodes terminate this far from it
    np.testing.assert_array_equal(states.obs[~done], states.final_obs[~done])
    initial = states.obs[done]
    assert len(np.unique(initial, axis=0)) == len(initial)


def test_initial_states_are_determined_by_key():
    reset, _ = compiled("InvertedPendulum-v5")
    one, again, other = (
        reset(jax.random.PRNGKey(0), 4),
        reset(jax.random.PRNGKey(0), 4),
        reset(jax.random.PRNGKey(1), 4),
    )
    assert_identical(one, again)
    assert not np.any(np.asarray(one.obs) == np.asarray(other.obs))
    assert len(np.unique(one.obs, axis=0)) == 4


@on_each
def test_environment_does_not_depend_on_number_of_environments(name):
    reset, step = compiled(name)
    actions = random_actions(name, 40, 8)
    few, many = reset(jax.random.PRNGKey(0), 4), reset(jax.random.PRNGKey(0), 8)
    for action in actions:
        few, many = step(few, action[:4]), step(many, action)
        assert_identical(few, at(jax.device_get(many), slice(4)))


@on_each
def test_step_depends_only_on_its_arguments(name):
    _, step = compiled(name)
    states, actions = play(name, 30, 4)
    step(with_velocity(name, at(states, 5), np.nan), actions[0])
    for t in reversed(range(30)):
        assert_identical(step(at(states, t), actions[t]), at(states, t + 1))


@on_each
def test_step_is_thread_safe(name):
    _, step = compiled(name)
    states, actions = play(name, 30, 4)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda t: step(at(states, t), actions[t]), range(30)))
    assert_identical(
        jax.tree.map(lambda *leaves: np.stack(leaves), *results), jax.tree.map(lambda leaf: leaf[1:], states)
    )


def test_compiled_and_eager_steps_agree():
    env = env_named("InvertedPendulum-v5")
    states, actions = play("InvertedPendulum-v5", 60, 4)
    ends = np.flatnonzero(states.terminated.any(axis=1))[0]
    for t in (ends - 2, ends - 1):  # without a reset and with one
        eager = env.step(jax.tree.map(jnp.asarray, at(states, t)), jnp.asarray(actions[t]))
        np.testing.assert_array_equal(eager.physics, states.physics[t + 1])
        chex.assert_trees_all_close(eager, at(states, t + 1), rtol=1e-6, atol=1e-6)


@on_each
def test_step_is_traced_once(name):
    reset, _ = compiled(name)
    traces = []

    @jit
    def step(state, action):
        traces.append(name)
        return env_named(name).step(state, action)

    state = reset(jax.random.PRNGKey(0), 4)
    for action in random_actions(name, 3, 4):
        state = step(state, action)
    assert len(traces) == 1


@on_each
def test_scan_in_pmap_matches_python_loop(name):
    states, actions = play(name, 20, 4)
    first = jax.tree.map(lambda leaf: leaf[0].reshape(2, 2, *leaf.shape[2:]), states)

    def run(state, actions):
        return jax.lax.scan(lambda s, a: (env_named(name).step(s, a),) * 2, state, actions)[1]

    mapped = jax.pmap(run, devices=jax.devices("cpu")[:2])
    trajectories = mapped(first, actions.reshape(20, 2, 2, -1).swapaxes(0, 1))
    by_time = jax.tree.map(lambda leaf: np.asarray(leaf).swapaxes(0, 1).reshape(20, 4, *leaf.shape[3:]), trajectories)
    np.testing.assert_array_equal(by_time.physics, states.physics[1:])
    chex.assert_trees_all_close(by_time, jax.tree.map(lambda leaf: leaf[1:], states), rtol=1e-6, atol=1e-6)


def with_velocity(name: str, state: base.EnvState, value: float) -> base.EnvState:
    """Sets a velocity of environment 1, to one that cannot be simulated."""
    rows = np.array(state.physics).view(np.float64)
    rows[1, 1 + env_named(name).model.nq] = value
    return state._replace(physics=jnp.asarray(rows.view(np.uint32)))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e12, -1e60, 1e200])
# Hopper's observations do not reveal it, because they clip velocities. The cart's position leaves the range of float32.
@pytest.mark.parametrize("name", ["Hopper-v5", "Ant-v5", "InvertedPendulum-v5"])
def test_invalid_environment_is_reset_silently_without_affecting_others(name, value, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    _, step = compiled(name)
    states, actions = play(name, 3, 4)
    state = at(states, 2)
    clean = step(state, actions[2])
    broken = step(with_velocity(name, state, value), actions[2])
    np.testing.assert_array_equal(broken.invalid, [False, True, False, False])
    assert broken.truncated[1] and not broken.terminated[1]
    assert broken.reward[1] == 0 and broken.elapsed[1] == 0
    np.testing.assert_array_equal(broken.final_obs[1], state.obs[1])
    chex.assert_tree_all_finite(broken._replace(physics=np.asarray(broken.physics).view(np.float64)))
    others = np.array([0, 2, 3])
    assert_identical(at(jax.device_get(broken), others), at(jax.device_get(clean), others))
    assert not step(broken, actions[2]).invalid.any()
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_contact_forces_are_cleared_at_reset():
    _, step = compiled("Ant-v5")
    states, actions = play("Ant-v5", 30, 4)
    touching = at(states, 29)._replace(elapsed=np.full(4, 999, np.int32))
    after = jax.device_get(step(touching, actions[29]))
    assert after.truncated.all()
    assert after.final_obs[:, -78:].any()
    assert not after.obs[:, -78:].any()


def test_mujoco_warnings_outside_of_environments_are_not_suppressed(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    _, step = compiled("Hopper-v5")
    states, actions = play("Hopper-v5", 1, 4)
    step(with_velocity("Hopper-v5", at(states, 0), np.nan), actions[0])
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><body><freejoint/><geom size='1'/></body></worldbody></mujoco>"
    )
    data = mujoco.MjData(model)
    data.qvel[0] = np.nan
    mujoco.mj_step(model, data)
    assert "QVEL" in "".join(capfd.readouterr())


def test_mujoco_timer_is_disabled_only_inside_of_environments():
    env, calls = make_env("Reacher-v5"), []
    state = jax.block_until_ready(env.reset(jax.random.PRNGKey(0), 2))
    mujoco.set_mjcb_time(lambda: calls.append(None) or 0.0)
    try:
        jax.block_until_ready(env.step(state, np.zeros((2, 2), np.float32)))
        assert not calls
        mujoco.mj_step(env.model, mujoco.MjData(env.model))
        assert calls
    finally:
        mujoco.set_mjcb_time(None)  # restores the default


def test_mujoco_timer_is_restored_once_the_last_of_several_threads_is_outside():
    model, calls = make_env("Reacher-v5").model, []
    data = mujoco.MjData(model)
    mujoco.set_mjcb_time(lambda: calls.append(None) or 0.0)
    try:
        with untimed(), untimed():
            mujoco.mj_step(model, data)
        assert not calls
        mujoco.mj_step(model, data)
        assert calls
    finally:
        mujoco.set_mjcb_time(None)


def test_model_compiles_without_output(tmp_path, monkeypatch, capfd, recwarn):
    monkeypatch.chdir(tmp_path)
    make_env("HalfCheetah-v5")  # its MJCF has an attribute that MuJoCo calls deprecated
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())
    assert not recwarn.list


def test_forward_reward_does_not_depend_on_position():
    reset, step = compiled("Hopper-v5")
    state = reset(jax.random.PRNGKey(0), 4)
    rows = np.repeat(np.array(state.physics).view(np.float64)[:1], 4, axis=0)
    far = [0.0, 1e3, 1e5, 1e7]
    rows[:, 1] += far  # the column after the time
    rows[:, -env_named("Hopper-v5").model.nq] += far  # and the copy from which the displacement is computed
    moved = step(state._replace(physics=jnp.asarray(rows.view(np.uint32))), np.full((4, 3), 0.5, np.float32))
    assert abs(moved.reward[0] - 1) > 0.01  # the body moves
    np.testing.assert_allclose(moved.reward, np.repeat(moved.reward[:1], 4), rtol=1e-5)


def test_actions_of_wrong_shape_are_rejected():
    env = env_named("Reacher-v5")
    state = compiled("Reacher-v5")[0](jax.random.PRNGKey(0), 4)
    with pytest.raises(ValueError, match=r"actions have shape \(4, 1\), expected \(4, 2\)"):
        env.step(state, jnp.zeros((4, 1)))


def test_integer_actions_are_accepted():
    reset, step = compiled("Reacher-v5")
    state = reset(jax.random.PRNGKey(0), 4)
    integer, real = (step(state, jnp.ones((4, 2), dtype)).physics for dtype in (jnp.int32, jnp.float32))
    assert_identical(integer, real)


def test_unknown_name_error_suggests_similar_names():
    with pytest.raises(ValueError, match="unknown environment 'HalfCheeta-v5'; did you mean .*HalfCheetah-v5") as error:
        make_env("HalfCheeta-v5")
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="Pusher-v5"):  # nothing is similar: all names are listed
        make_env("zzz")
    with pytest.raises(ValueError, match="has no option backend"):
        make_env("Hopper-v5", backend="mjx")


@pytest.mark.parametrize("name", ["InvertedPendulum-v5", "mjx:InvertedPendulum-v5"])
def test_time_limit_of_mujoco_environments_can_be_set(name):
    assert (make_env(name).episode_length, make_env(name, max_episode_steps=30).episode_length) == (1000, 30)
    with pytest.raises(ValueError, match="max_episode_steps=0 must be"):
        make_env(name, max_episode_steps=0)


def test_error_for_gymnasium_option_names_gymnasium_environment():
    with pytest.raises(ValueError, match="Ant-v5 has no option xml_file.*gymnasium:Ant-v5"):
        make_env("Ant-v5", xml_file="ant.xml")
    with pytest.raises(ValueError, match="mjx:Ant-v5 has no option xml_file; it has impl, max_episode_steps"):
        make_env("mjx:Ant-v5", xml_file="ant.xml")


def test_environment_implements_protocol():
    assert isinstance(MujocoEnvironment(hopper()), base.Environment)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"observation_size": 0}, "observation_size=0 must be a whole number of at least 1"),
        ({"action_size": 1.5}, "action_size=1.5 must be a whole number of at least 1"),
        ({"episode_length": 0}, "episode_length=0 must be a whole number of at least 1"),
        ({"episode_length": None}, "episode_length=None must be a whole number of at least 1"),
        ({"episode_length": 2**40}, "episode_length=1099511627776 must be at most 2147483647"),
        ({"action_low": np.full(3, -1.0)}, r"action_low=.* must be arrays of action_size=1 bounds"),
        ({"action_low": np.full(1, np.nan)}, r"action_low=.* must be arrays .*, the lower ones at most the upper ones"),
        ({"action_low": np.full(1, 2.0)}, r"action_low=.* must be arrays .*, the lower ones at most the upper ones"),
        ({"reset": lambda key, num_envs: (jnp.zeros((num_envs, 1)), {})}, "reset must return an EnvState.* type tuple"),
        (
            {"observation_size": 7},
            r"reset must return obs of shape \(env, 7\), as observation_size says, .* have the shape \(1, \d\)",
        ),
        ({"step": lambda state, action: (state, {})}, "step must return an EnvState, .* type tuple"),
        (
            {"step": lambda state, action: state._replace(reward=action)},
            r"step must return reward .* as reset, float32\[1\], not float32\[1, 1\]",
        ),
        (
            {"step": lambda state, action: state._replace(terminated=action[:, 0])},
            r"step must return terminated .* as reset, bool\[1\], not float32\[1\]",
        ),
        (
            {"step": lambda state, action: state._replace(obs=jnp.zeros((1, 9)))},
            r"step must return obs of the same shapes and types as reset, .* not float32\[1, 9\]",
        ),
        (
            {"step": lambda state, action: state._replace(physics={})},
            r"step must return physics of the same shapes and types as reset, ",
        ),
        ({"action_counts": (3,)}, r"with action_counts=\(3,\), action_low must be 0 and action_high one less"),
        (
            {"action_counts": (2, 2), "action_low": np.zeros(1), "action_high": np.ones(1)},
            "with action_counts=.* each of action_size=1 coordinates",
        ),
    ],
)
def test_object_whose_attributes_are_wrong_is_refused(changed, message):
    env = ProbeEnvironment()
    environment_for(env, 1)
    for name, value in changed.items():
        setattr(env, name, value)
    with pytest.raises(ValueError, match=f"^env=probe: {message}"):
        environment_for(env, 1)


@pytest.mark.parametrize(
    ("field", "wrong", "told"),
    [
        (
            "reward",
            lambda value: value[:, None],
            r"float and shape \(env,\), .* type float32 and the shape \(1, 1\)",
        ),
        ("reward", lambda value: value[0], r"float and shape \(env,\), .* the shape \(\)"),
        ("reward", lambda value: value.astype(int), "float .* type int32"),
        ("terminated", lambda value: value.astype(float), "bool.* type float32"),
        ("truncated", lambda value: value.astype(int), "bool.* type int32"),
        ("invalid", lambda value: False, r"bool .* the shape \(\)"),
        ("elapsed", lambda value: value.astype(float), "int32 .* type float32"),
        ("reward", lambda value: jax.random.split(jax.random.key(0), 1), "float .* type key<fry>"),
    ],
)
def test_field_that_is_wrong_in_reset_and_step_is_named(field, wrong, told):
    class Wrong(ProbeEnvironment):
        def reset(self, key, num_envs):
            state = super().reset(key, num_envs)
            return state._replace(**{field: wrong(getattr(state, field))})

        def step(self, state, action):
            raise AssertionError("the first state is wrong already")

    with pytest.raises(ValueError, match=f"^env=probe: reset must return {field} of type {told}"):
        environment_for(Wrong(), 1)


def test_program_of_choices_gets_them_as_integers_from_0():
    class Choices(ProbeEnvironment):
        action_counts, action_low, action_high = (3,), np.zeros(1, int), np.full(1, 2)

        def step(self, state, action):
            worth = jnp.array([0.0, 1.0, 0.0])  # which only integers index
            after = super().step(state, action.astype(jnp.float32))
            return after._replace(reward=worth[action[:, 0]])

    settings = {"total_steps": 6_000, "num_envs": 16, "segment_length": 4, "steps_per_update": 256, "actors": 1}
    result = jaxtrpo.train(Choices(), policy="mlp(hidden=())", critic="none", progress=False, **settings)
    assert result.metrics["mean_return"][-1] > 1.8 * result.metrics["mean_return"][0]
    assert int(result.policy(np.zeros(2, np.float32))[0]) == 1


def test_object_that_returns_python_values_is_refused():
    env = ProbeEnvironment()
    step = env.step
    env.step = lambda state, action: step(state, action)._replace(terminated=False)
    with pytest.raises(ValueError, match=r"^env=probe: step must return terminated .* not bool\[\]"):
        environment_for(env, 1)


def test_parameters_of_reset_may_have_other_names():
    class Renamed(ProbeEnvironment):
        def reset(self, seed, n):
            return super().reset(seed, n)

    environment_for(Renamed(), 1)


def test_object_that_lacks_attributes_is_told_which():
    env = SimpleNamespace(name="mine", reset=print, step=print, observation_size=1, action_size=1, action_low=0)
    with pytest.raises(ValueError, match=r"^env=.* must be a name, .*, which lacks action_high, episode_length$"):
        environment_for(env, 1)


def test_object_that_shows_images_is_accepted():
    environment_for(LightEnvironment(), 1)


class Forwarding:
    """As wrappers of other packages do."""

    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        return getattr(self.env, name)


def test_wrapper_that_forwards_attributes_has_the_abilities_of_what_it_wraps():
    env = Forwarding(make_env("gymnasium:CartPole-v1", processes=0))
    assert action_space(env).counts == (2,) and abilities.wastes_steps(env) and not abilities.saves_state(env)
    assert abilities.has(env, base.Environment) and not abilities.has(env, abilities.Masking)
    state = jaxtrpo.train(env, policy="mlp(hidden=())", num_envs=2, total_steps=1, actors=1, progress=False).state
    assert state.segments == 1


def test_function_that_returns_a_program_is_told_what_that_costs(capsys):
    class Program(ProbeEnvironment):
        is_program = True

    settings = {"policy": "mlp(hidden=())", "critic": "none", "total_steps": 1, "actors": 1}
    jaxtrpo.train(lambda: Program(), **settings)
    assert "probe is a JAX program that a function has returned, and runs on CPU cores; pass" in capsys.readouterr().err
    jaxtrpo.train(Program(), **settings)
    assert "function" not in capsys.readouterr().err
    with pytest.raises(ValueError, match="^device=gpu: .* your own, but not a function that returns one"):
        jaxtrpo.train(lambda: Program(), device="gpu", **settings)
    with pytest.raises(ValueError, match="itself ends its episodes after .* a shorter limit must be set there$"):
        jaxtrpo.train(lambda: Program(), max_episode_steps=1, **settings)


def test_conditions_that_begin_again_have_whole_episodes():
    """Also where an episode was under way: its steps do not count."""
    env = Repeated(make_env("Reacher-v5"), 2, episode_length=8)
    step = jax.jit(env.step)
    begun = state = env.reset(jax.random.PRNGKey(0), 4)
    action = jnp.zeros((4, env.action_size))
    for _ in range(3):
        state = step(state, action)
    assert np.all(state.elapsed == 3)
    state = env.again(state)
    np.testing.assert_array_equal(state.obs, begun.obs)
    ends = []
    for _ in range(8):
        state = step(state, action)
        ends.append(bool(jnp.all(state.truncated | state.terminated)))
    assert ends == [False] * 7 + [True]
