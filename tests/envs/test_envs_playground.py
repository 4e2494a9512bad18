"""MuJoCo Playground environments obey the environment protocol; without the package, a fake module replaces it."""

import importlib.util
import subprocess
import sys
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtrpo
from jaxtrpo.envs import base
from jaxtrpo.envs.playground import PlaygroundEnvironment
from jaxtrpo.envs.registry import is_program, make_env

THERE = importlib.util.find_spec("mujoco_playground") is not None
needs_playground = pytest.mark.skipif(not THERE, reason="playground is not installed")
LIMIT = 5


class Data(NamedTuple):
    qpos: jax.Array
    qvel: jax.Array
    act: jax.Array  # empty, as in many models


class State(NamedTuple):
    data: Data
    obs: Any
    reward: jax.Array
    done: jax.Array
    info: dict[str, jax.Array]


class Walk:
    """A point on a line that moves by its action and terminates beyond 1; observations include a privileged state."""

    action_size, dt = 1, 0.1

    def __init__(self, policy_obs: str = "state"):
        self.policy_obs = policy_obs

    def reset(self, rng: jax.Array) -> State:
        return self.at(jax.random.uniform(rng, (1,), minval=-0.1, maxval=0.1), jnp.int32(0))

    def step(self, state: State, action: jax.Array) -> State:
        now = self.at(state.data.qpos + action, state.info["steps"] + 1)
        beyond = jnp.abs(now.data.qpos[0]) > 1
        return now._replace(reward=action[0], done=(beyond | (now.info["steps"] >= LIMIT)).astype(float))

    def at(self, qpos: jax.Array, steps: jax.Array) -> State:
        obs = {self.policy_obs: qpos, "privileged_state": jnp.concatenate([qpos, qpos])}
        return State(Data(qpos, 0 * qpos, jnp.zeros(0)), obs, jnp.float32(0), jnp.float32(0), {"steps": steps})


@pytest.fixture(scope="module")
def walk():
    return PlaygroundEnvironment("playground:Walk", Walk(), LIMIT)


def test_policy_observes_state_entry_of_dictionary(walk):
    assert isinstance(walk, base.Environment) and walk.is_program and is_program("playground:CheetahRun")
    assert (walk.observation_size, walk.action_size, walk.seconds_per_step) == (1, 1, 0.1)
    assert (walk.action_low, walk.action_high) == (-1, 1)
    state = walk.reset(jax.random.PRNGKey(0), 3)
    np.testing.assert_array_equal(state.obs, state.physics.data.qpos)
    with pytest.raises(ValueError, match="playground:Walk: observations must be flat arrays or a dictionary with"):
        PlaygroundEnvironment("playground:Walk", Walk("pixels"), LIMIT)


def test_finished_episode_restarts_and_builtin_time_limit_truncates(walk):
    step = jax.jit(walk.step)
    state = jax.jit(walk.reset, static_argnums=1)(jax.random.PRNGKey(0), 2)
    for number in range(1, 2 * LIMIT + 1):
        before, state = state, step(state, np.float32([[0.0], [3.0 if number == 2 else 0.0]]))
        np.testing.assert_array_equal(state.terminated, [False, number == 2])
        np.testing.assert_array_equal(state.truncated, [number % LIMIT == 0, number in (2 + LIMIT,)])
        over = np.asarray(state.terminated | state.truncated)
        np.testing.assert_array_equal(np.asarray(state.physics.info["steps"])[over], 0)
        np.testing.assert_allclose(state.obs, state.physics.data.qpos, atol=1e-6)
        assert (np.abs(state.obs) <= 0.1).all()
        moved = np.abs(state.obs - before.obs)[:, 0] > 1e-4
        assert moved.tolist() == over.tolist()  # only a new episode moves the point


def test_invalid_environment_is_reset_without_affecting_others(walk):
    first = walk.reset(jax.random.PRNGKey(0), 3)
    after = walk.step(first, np.float32([[0.1], [np.nan], [-0.1]]))
    np.testing.assert_array_equal(after.invalid, [False, True, False])
    np.testing.assert_array_equal(after.terminated, [False, False, False])
    np.testing.assert_array_equal(after.final_obs[1], first.obs[1])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))


def test_training_runs(walk):
    result = jaxtrpo.train(walk, total_steps=256, steps_per_update=128, num_envs=8, actors=2, progress=False)
    assert result.metrics["env_steps"][-1] == 256 and result.metrics["episodes"].sum() > 0


def install_fake_playground(monkeypatch, load) -> None:
    registry = types.SimpleNamespace(
        ALL_ENVS=("CheetahRun", "WalkerRun"),
        get_default_config=lambda name: {"episode_length": 7, "impl": "warp", "ctrl_dt": 0.01},
        load=load,
    )
    module = types.ModuleType("mujoco_playground")
    module.registry = registry
    monkeypatch.setitem(sys.modules, "mujoco_playground", module)


def test_options_override_playground_configuration(monkeypatch):
    overrides = {}
    install_fake_playground(monkeypatch, lambda name, config_overrides: overrides.update(config_overrides) or Walk())
    env = make_env("playground:CheetahRun", ctrl_dt=0.02)
    assert env.name == "playground:CheetahRun" and env.episode_length == 7
    assert overrides == {"impl": "jax", "ctrl_dt": 0.02}  # the JAX implementation of MJX needs no NVIDIA GPU
    assert make_env("playground:CheetahRun", episode_length=9).episode_length == 9


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("CheetaRun", {}, "unknown environment 'playground:CheetaRun'; did you mean playground:CheetahRun"),
        (
            "CheetahRun",
            {"length": 3},
            "^playground:CheetahRun has no option length; it has ctrl_dt, episode_",
        ),
        ("CheetahRun", {"impl": "warp"}, "^playground:CheetahRun supports impl='jax' only, not 'warp'$"),
        ("CheetahRun", {"episode_length": 0}, "^episode_length=0 must be a whole number of at least 1$"),
        ("WalkerRun", {}, "^playground:WalkerRun needs the robot models of mujoco_menagerie; Playground failed"),
    ],
)
def test_invalid_options_are_rejected_in_one_line(monkeypatch, name, options, message):
    def load(name, config_overrides):
        raise subprocess.CalledProcessError(128, "git")

    install_fake_playground(monkeypatch, load)
    with pytest.raises(ValueError, match=message) as error:
        make_env(f"playground:{name}", **options)
    assert "\n" not in str(error.value)


def test_missing_package_error_names_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco_playground", None)  # pretends that it is not installed
    message = r"^playground:CheetahRun needs the package playground: pip install playground$"
    with pytest.raises(ValueError, match=message):
        make_env("playground:CheetahRun")


@needs_playground
def test_steps_match_playground():
    with pytest.raises(ValueError, match="did you mean playground:PointMass"):
        make_env("playground:PointMas")
    env = make_env("playground:PointMass", episode_length=LIMIT)
    assert (env.observation_size, env.action_size, env.seconds_per_step) == (4, 2, 0.02)
    state = jax.jit(env.reset, static_argnums=1)(jax.random.PRNGKey(0), 2)
    step = jax.jit(lambda state, action: (env.step(state, action), jax.vmap(env.env.step)(state.physics, action)))
    for number in range(1, LIMIT + 1):
        state, theirs = step(state, jnp.full((2, 2), 0.5))
        np.testing.assert_array_equal(state.final_obs, theirs.obs)
        np.testing.assert_array_equal(state.reward, theirs.reward)
        np.testing.assert_array_equal(state.truncated, number == LIMIT)
