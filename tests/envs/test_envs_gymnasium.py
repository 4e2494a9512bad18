"""The MuJoCo tasks match Gymnasium's implementation."""

import functools
from typing import NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
import scipy.stats

from jaxtrpo.envs.mujoco.tasks import TASKS
from jaxtrpo.envs.registry import make_env

TERMINATING = ("InvertedPendulum-v5", "InvertedDoublePendulum-v5", "Hopper-v5", "Walker2d-v5", "Ant-v4", "Ant-v5",
          "Humanoid-v4", "Humanoid-v5")  # fmt: skip
CONTACT_FORCES = ("Ant-v5", "Humanoid-v4", "Humanoid-v5", "HumanoidStandup-v5")  # last 78 numbers of observations
RESETS = 1000

pytestmark = pytest.mark.filterwarnings("ignore:.*-v4 is out of date")
every_task = pytest.mark.parametrize("name", sorted(TASKS))
our_env = functools.cache(make_env)
# Compiles in a quarter of the time.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@functools.cache
def our_reset(name: str):
    """Returns the compiled reset of 100 environments by one key."""
    return jit(lambda key: our_env(name).reset(key, 100))


@functools.cache
def gymnasium_env(name: str):
    return gym.make(name, disable_env_checker=True).unwrapped


@pytest.fixture(autouse=True, scope="module")
def no_mujoco_log():
    """Suppresses the warnings that MuJoCo prints and logs to a file when Gymnasium compiles a model."""
    before, quiet = mujoco.MjLogConfig.get(), mujoco.MjLogConfig.get()
    quiet.logto_console = quiet.logto_file = False
    quiet.set()
    yield
    before.set()


def bits_of(env, data: mujoco.MjData):
    """Converts Gymnasium's MjData to the state bits of `env`."""
    part = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    row = np.empty(mujoco.mj_stateSize(env.model, part))
    mujoco.mj_getState(env.model, data, row, part)
    layout = env.engine.layout
    carried = [row[where] for where in layout.carried]
    return np.concatenate([*carried, *(np.ravel(getattr(data, name)) for name in layout.changes)]).view(np.uint32)


def positions_and_velocities(env, physics) -> np.ndarray:
    rows = np.asarray(physics).view(np.float64)
    return rows[:, 1 : 1 + env.model.nq + env.model.nv]  # the first number is the time


def test_every_task_of_version_5_is_implemented():
    theirs = {s.id for s in gym.registry.values() if s.version == 5 and "envs.mujoco" in str(s.entry_point)}
    assert theirs == set(TASKS) - {"Ant-v4", "Humanoid-v4"}


@every_task
def test_sizes_bounds_and_time_limit_match_gymnasium(name):
    env, reference = our_env(name), gymnasium_env(name)
    assert env.name == name
    assert (env.observation_size,) == reference.observation_space.shape
    assert (env.action_size,) == reference.action_space.shape
    assert env.episode_length == gym.spec(name).max_episode_steps
    np.testing.assert_array_equal(env.action_low, reference.action_space.low)
    np.testing.assert_array_equal(env.action_high, reference.action_space.high)


class Steps(NamedTuple):
    """Recorded steps of a Gymnasium environment."""

    before: list  # state bits
    action: list
    obs: list
    reward: list
    terminated: list
    after: list  # state bits


def gymnasium_steps(name: str, num: int) -> Steps:
    env, reference = our_env(name), gymnasium_env(name)
    rng = np.random.default_rng(0)
    steps = Steps([], [], [], [], [], [])
    reference.reset(seed=0)
    for t in range(num):
        if t % 40 == 39:  # a kick reaches states that random actions do not
            kick = rng.normal(scale=3.0, size=env.model.nv)
            reference.set_state(reference.data.qpos, reference.data.qvel + kick)
        before = bits_of(env, reference.data)
        action = rng.uniform(env.action_low, env.action_high).astype(np.float32)
        obs, reward, terminated, _, _ = reference.step(action)
        step = (before, action, obs, reward, terminated, bits_of(env, reference.data))
        for values, value in zip(steps, step, strict=True):
            values.append(value)
        if terminated:
            reference.reset()
    return steps


@every_task
def test_steps_match_gymnasium(name):
    env = our_env(name)
    theirs = Steps(*map(np.array, gymnasium_steps(name, 320)))
    shapes = jax.eval_shape(lambda: env.reset(jax.random.PRNGKey(0), 320))
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    state = jit(env.step)(blank._replace(physics=jnp.asarray(theirs.before)), theirs.action)
    np.testing.assert_allclose(state.final_obs, theirs.obs, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(state.reward, theirs.reward, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(state.terminated, theirs.terminated)
    # Unless an episode ends, the states are bit-identical.
    np.testing.assert_array_equal(np.asarray(state.physics)[~theirs.terminated], theirs.after[~theirs.terminated])
    # The comparison is not vacuous.
    assert theirs.terminated.any() == (name in TERMINATING)
    assert theirs.obs[:, -78:].any() or name not in CONTACT_FORCES


@every_task
def test_initial_observation_matches_gymnasium(name):
    env, reference = our_env(name), gymnasium_env(name)
    state = our_reset(name)(jax.random.PRNGKey(1))
    for obs, row in zip(np.array(state.obs), positions_and_velocities(env, state.physics), strict=True):
        mujoco.mj_resetData(reference.model, reference.data)
        reference.set_state(row[: env.model.nq], row[env.model.nq :])
        np.testing.assert_allclose(obs, reference._get_obs(), rtol=1e-5, atol=1e-5)


def same_distribution(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Kolmogorov-Smirnov test of every coordinate that is not constant; standard deviations agree within 16 %."""
    constant = theirs.std(axis=0) < 1e-9
    if not np.allclose(ours[:, constant], theirs[:, constant], atol=1e-6):
        return False
    ours, theirs = ours[:, ~constant], theirs[:, ~constant]
    p = scipy.stats.ks_2samp(ours, theirs, axis=0).pvalue
    spread = ours.std(axis=0) / theirs.std(axis=0)
    return bool(np.all(p > 1e-4 / len(p)) and np.all(np.abs(spread - 1) < 0.16))


def gymnasium_resets(name: str) -> np.ndarray:
    reference = gymnasium_env(name)
    reference.reset(seed=3)
    rows = []
    for _ in range(RESETS):
        reference.reset_model()
        rows.append(np.concatenate([reference.data.qpos, reference.data.qvel]))
    return np.array(rows)


@every_task
def test_distribution_of_initial_states_matches_gymnasium(name):
    env = our_env(name)
    batches = [our_reset(name)(key).physics for key in jax.random.split(jax.random.PRNGKey(2), RESETS // 100)]
    assert same_distribution(positions_and_velocities(env, np.concatenate(batches)), gymnasium_resets(name))


@pytest.mark.parametrize("distort", [lambda x: 1.25 * x, lambda x: x + 0.02, np.abs, np.zeros_like])
def test_same_distribution_detects_differences(distort):
    rows = gymnasium_resets("HalfCheetah-v5")
    half = RESETS // 2
    assert same_distribution(rows[:half], rows[half:])
    assert not same_distribution(distort(rows[:half]), rows[half:])
