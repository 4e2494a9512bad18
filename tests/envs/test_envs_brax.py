"""Brax environments obey the environment protocol."""

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
    """A point on a line that moves by its action, terminates beyond 1 and becomes invalid if the action is NaN."""
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

    class WithoutBackend(Walk):
        def __init__(self):
            pass

    brax.envs.register_environment("walk", Walk)
    brax.envs.register_environment("walk_without_backend", WithoutBackend)
    return make_env("brax:walk", episode_length=LIMIT)


@functools.cache
def compiled(env):
    return jit(env.reset, static_argnums=1), jit(chex.assert_max_traces(env.step, 1))


def test_environment_implements_protocol(walk):
    assert isinstance(walk, base.Environment)
    assert walk.name == "brax:walk/generalized"
    assert (walk.observation_size, walk.action_size, walk.episode_length) == (1, 1, LIMIT)
    assert (walk.action_low, walk.action_high) == (-1, 1)


def test_backend_is_passed_to_environments_that_have_one(walk):
    assert (walk.name, make_env("brax:walk_without_backend").name) == (
        "brax:walk/generalized",
        "brax:walk_without_backend",
    )
    with pytest.raises(ValueError, match="^brax:walk_without_backend has no setting backend, such as 'spring'$"):
        make_env("brax:walk_without_backend/spring")


def test_time_limit_truncates_after_exactly_episode_length_steps(walk):
    reset, step = compiled(walk)
    state = reset(jax.random.PRNGKey(0), 4)
    truncated = []
    for _ in range(2 * LIMIT + 1):
        state = step(state, np.zeros((4, 1), np.float32))
        assert not state.terminated.any()
        truncated.append(bool(state.truncated.all()))
    assert truncated == ([False] * (LIMIT - 1) + [True]) * 2 + [False]


def test_finished_episode_restarts_and_others_continue(walk):
    reset, step = compiled(walk)
    first = reset(jax.random.PRNGKey(0), 4)
    after = step(first, np.array([[0.3], [2.0], [-0.3], [0.1]], np.float32))
    np.testing.assert_array_equal(after.terminated, [False, True, False, False])
    assert not after.truncated.any() and not after.invalid.any()
    np.testing.assert_allclose(after.final_obs - first.obs, [[0.3], [2.0], [-0.3], [0.1]], atol=0.11)  # clipped at 2
    assert abs(after.obs[1, 0]) <= 0.1 and after.obs[1, 0] != first.obs[1, 0]
    others = np.array([0, 2, 3])
    np.testing.assert_array_equal(after.obs[others], after.final_obs[others])
    np.testing.assert_allclose(after.physics.pipeline_state.q, after.obs, rtol=1e-6)  # the engine was reset, too
    np.testing.assert_allclose(after.reward, [0.3, 2.0, -0.3, 0.1])


# Observations are clipped, so only q reveals the last two.
@pytest.mark.parametrize("action", [np.nan, np.inf, 1e20])
def test_invalid_environment_is_reset_without_affecting_others(walk, action):
    reset, step = compiled(walk)
    first = reset(jax.random.PRNGKey(0), 4)
    after = step(first, np.array([[0.3], [action], [-0.3], [0.1]], np.float32))
    np.testing.assert_array_equal(after.invalid, [False, True, False, False])
    np.testing.assert_array_equal(after.truncated, [False, True, False, False])
    assert not after.terminated.any()
    assert after.reward[1] == 0
    np.testing.assert_array_equal(after.final_obs[1], first.obs[1])
    chex.assert_tree_all_finite(after)


def test_environment_does_not_depend_on_number_of_environments(walk):
    reset, step = jit(walk.reset, static_argnums=1), jit(walk.step)
    actions = np.random.default_rng(0).uniform(-1, 1, (20, 8, 1)).astype(np.float32)
    few, many = reset(jax.random.PRNGKey(0), 4), reset(jax.random.PRNGKey(0), 8)
    for action in actions:
        few, many = step(few, action[:4]), step(many, action)
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[:4]), few, jax.device_get(many))


def test_scan_matches_python_loop(walk):
    reset, step = compiled(walk)
    actions = np.random.default_rng(0).uniform(-1, 1, (12, 4, 1)).astype(np.float32)
    state = reset(jax.random.PRNGKey(0), 4)
    last, _ = jit(lambda s: jax.lax.scan(lambda s, a: (walk.step(s, a), None), s, actions))(state)
    for action in actions:
        state = step(state, action)
    chex.assert_trees_all_close(last, state, rtol=1e-6)


def test_default_backend_steps_without_output(tmp_path, monkeypatch, capfd):
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


def test_deprecated_mjcf_loads_without_output(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    env = make_env("brax:halfcheetah/spring")
    assert env.name == "brax:halfcheetah/spring" and env.env.backend == "spring"
    assert (env.observation_size, env.action_size, env.episode_length) == (17, 6, 1000)
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_structured_observations_are_rejected():
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
        (lambda: make_env("brax:zzz"), "unknown environment 'brax:zzz'; available: .*brax:ant"),
        (lambda: make_env("brax:ant", backend="sprung"), "unknown Brax backend 'sprung'; did you mean spring"),
        (lambda: make_env("brax:ant/mjc"), "unknown Brax backend 'mjc'; did you mean mjx"),
        (lambda: make_env("brax:ant", episode_length=0), "episode_length=0 must be a whole number of at least 1"),
        (lambda: make_env("brax:ant", episode_length=1.5), "episode_length=1.5 must be a whole number of at least 1"),
        (lambda: make_env("brax:ant", backend=3), "unknown Brax backend '3'"),
        (lambda: make_env("brax:ant", max_episode_steps=9, episode_length=9), "are the same setting; give one"),
        (lambda: make_env("brax:ant", backends="spring"), "has no option backends; it has backend, episode_length"),
    ],
)
def test_invalid_setting_is_rejected_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_batched_linear_solves_do_not_deadlock_xla_threads():
    """With batches of 128 on each of two actors, LAPACK distributes the systems over threads and waits for them."""
    program = (
        "import jaxtrpo; jaxtrpo.train('brax:ant', actors=2, num_envs=256, steps_per_update=4096, total_steps=8192, "
        "critic='linear', progress=False)"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("JAX_NUM_CPU_DEVICES", "NPROC")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
