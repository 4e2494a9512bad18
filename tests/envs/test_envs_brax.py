"""Brax environments follow the same protocol and laws."""

import functools
import os
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrpo.envs import base
from jaxtrpo.envs.brax import make_brax_env
from jaxtrpo.envs.registry import make_env

LIMIT = 5
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiles faster


@pytest.fixture(scope="module")
def walk():
    """A point on a line that moves by its action, ends beyond 1, and breaks where the action is not a number."""
    make_brax_env("fast")  # imports Brax without its warnings
    import brax.envs
    from brax.base import Motion, State, Transform

    class Walk(brax.envs.PipelineEnv):
        def __init__(self, backend: str):
            pass

        action_size = 1

        def reset(self, rng: jax.Array) -> brax.envs.State:
            return self.at(jax.random.uniform(rng, (1,), minval=-0.1, maxval=0.1))

        def step(self, state: brax.envs.State, action: jax.Array) -> brax.envs.State:
            now = self.at(state.pipeline_state.q + action)
            return now.replace(reward=action[0], done=jnp.where(jnp.abs(now.pipeline_state.q[0]) > 1, 1.0, 0.0))

        def at(self, q: jax.Array) -> brax.envs.State:
            still = State(q, jnp.zeros(1), Transform.create(pos=jnp.zeros(3)), Motion.create(vel=jnp.zeros(3)), None)
            return brax.envs.State(still, jnp.clip(q, -2.0, 2.0), jnp.float32(0), jnp.float32(0))

    brax.envs.register_environment("walk", Walk)
    return make_env("brax:walk", episode_length=LIMIT)


@functools.cache
def compiled(env):
    return jit(env.reset, static_argnums=1), jit(chex.assert_max_traces(env.step, 1))


def test_an_environment_follows_the_protocol(walk):
    assert isinstance(walk, base.Environment)
    assert walk.name == "brax:walk/generalized"
    assert (walk.observation_size, walk.action_size, walk.episode_length) == (1, 1, LIMIT)
    assert (walk.action_low, walk.action_high) == (-1, 1)


def test_the_time_limit_truncates_at_exactly_its_length(walk):
    reset, step = compiled(walk)
    state = reset(jax.random.PRNGKey(0), 4)
    truncated = []
    for _ in range(2 * LIMIT + 1):
        state = step(state, np.zeros((4, 1), np.float32))
        assert not state.terminated.any()
        truncated.append(bool(state.truncated.all()))
    assert truncated == ([False] * (LIMIT - 1) + [True]) * 2 + [False]


def test_an_episode_that_ends_starts_again_and_the_others_go_on(walk):
    reset, step = compiled(walk)
    first = reset(jax.random.PRNGKey(0), 4)
    after = step(first, np.array([[0.3], [2.0], [-0.3], [0.1]], np.float32))
    np.testing.assert_array_equal(after.terminated, [False, True, False, False])
    assert not after.truncated.any() and not after.invalid.any()
    np.testing.assert_allclose(after.final_obs - first.obs, [[0.3], [2.0], [-0.3], [0.1]], atol=0.11)  # clipped at 2
    assert abs(after.obs[1, 0]) <= 0.1 and after.obs[1, 0] != first.obs[1, 0]
    others = np.array([0, 2, 3])
    np.testing.assert_array_equal(after.obs[others], after.final_obs[others])
    np.testing.assert_allclose(after.physics.pipeline_state.q, after.obs, rtol=1e-6)  # the engine was reset as well
    np.testing.assert_allclose(after.reward, [0.3, 2.0, -0.3, 0.1])


@pytest.mark.parametrize(
    "action", [np.nan, np.inf, 1e20]
)  # observations are clipped, so that only q shows the last two
def test_an_environment_that_breaks_is_reset_and_harms_no_other(walk, action):
    reset, step = compiled(walk)
    first = reset(jax.random.PRNGKey(0), 4)
    after = step(first, np.array([[0.3], [action], [-0.3], [0.1]], np.float32))
    np.testing.assert_array_equal(after.invalid, [False, True, False, False])
    np.testing.assert_array_equal(after.truncated, [False, True, False, False])
    assert not after.terminated.any()
    assert after.reward[1] == 0
    np.testing.assert_array_equal(after.final_obs[1], first.obs[1])
    chex.assert_tree_all_finite(after)


def test_what_an_environment_does_is_independent_of_how_many_others_there_are(walk):
    reset, step = jit(walk.reset, static_argnums=1), jit(walk.step)
    actions = np.random.default_rng(0).uniform(-1, 1, (20, 8, 1)).astype(np.float32)
    few, many = reset(jax.random.PRNGKey(0), 4), reset(jax.random.PRNGKey(0), 8)
    for action in actions:
        few, many = step(few, action[:4]), step(many, action)
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[:4]), few, jax.device_get(many))


def test_a_scan_carries_the_state_and_steps_as_a_loop_does(walk):
    reset, step = compiled(walk)
    actions = np.random.default_rng(0).uniform(-1, 1, (12, 4, 1)).astype(np.float32)
    state = reset(jax.random.PRNGKey(0), 4)
    last, _ = jit(lambda s: jax.lax.scan(lambda s, a: (walk.step(s, a), None), s, actions))(state)
    for action in actions:
        state = step(state, action)
    chex.assert_trees_all_close(last, state, rtol=1e-6)


def test_the_default_physics_of_brax_itself_steps_and_nobody_hears_of_it(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    env = make_env("brax:inverted_pendulum")

    @jit
    def push(key, actions):
        first = jax.tree.map(lambda leaf: leaf[jnp.array([0, 0])], env.reset(key, 1))
        return first, jax.lax.scan(lambda s, a: (env.step(s, a), None), first, actions)[0]

    first, last = push(jax.random.PRNGKey(0), np.full((3, 2, 1), [[0.1], [-0.1]], np.float32))
    assert first.obs.shape == (2, env.observation_size)
    moved = np.asarray(last.final_obs - first.obs)[:, 0]
    assert moved[0] > moved[1] + 1e-4  # a cart goes where it is pushed
    np.testing.assert_array_equal(last.elapsed, 3)
    np.testing.assert_array_equal(last.reward, 1)
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_an_mjcf_that_mujoco_complains_about_is_loaded_in_silence(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    env = make_env("brax:halfcheetah/spring")
    assert env.name == "brax:halfcheetah/spring" and env.env.backend == "spring"
    assert (env.observation_size, env.action_size, env.episode_length) == (17, 6, 1000)
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_observations_that_are_no_flat_arrays_are_refused():
    make_brax_env("fast")
    import brax.envs
    from brax.envs.fast import Fast

    brax.envs.register_environment("fast_pixels", lambda backend: Fast(obs_mode="dict_state"))
    with pytest.raises(ValueError, match="observations must be flat arrays"):
        make_env("brax:fast_pixels")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_env("brax:Ants"), "unknown environment 'brax:Ants'; did you mean brax:ant"),
        (lambda: make_env("brax:zzz"), "unknown environment 'brax:zzz'; there are .*brax:ant"),
        (lambda: make_env("brax:ant", backend="sprung"), "unknown Brax backend 'sprung'; did you mean spring"),
        (lambda: make_env("brax:ant/mjc"), "unknown Brax backend 'mjc'; did you mean mjx"),
        (lambda: make_env("brax:ant", episode_length=0), "episode_length must be at least 1"),
        (lambda: make_env("brax:ant", max_episode_steps=9, episode_length=9), "are the same setting; give one"),
        (lambda: make_env("brax:ant", backends="spring"), "takes no option backends, but backend, episode_length"),
    ],
)
def test_a_wrong_setting_is_refused_in_a_sentence(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_batches_of_equations_do_not_use_up_the_threads_that_solve_them():
    """On two actors whose batches of 128 have LAPACK deal them out to threads that it then waits on."""
    program = (
        "import jaxtrpo; jaxtrpo.train('brax:ant', actors=2, num_envs=256, steps_per_update=4096, total_steps=8192, "
        "critic='linear', progress=False)"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("JAX_NUM_CPU_DEVICES", "NPROC")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
