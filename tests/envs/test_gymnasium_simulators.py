"""Simulators of Gymnasium in unusual circumstances: several threads, short data, and no time limit."""

from __future__ import annotations

import itertools
import threading
import time

import counting_env
import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import jaxtrpo
from jaxtrpo.envs.gymnasium.shared_arrays import RowSizes
from jaxtrpo.envs.gymnasium.single_envs import SingleEnvs
from jaxtrpo.envs.gymnasium.spec import UNLIMITED
from jaxtrpo.envs.registry import make_env
from jaxtrpo.rollout.staggering import first_time_limits
from jaxtrpo.training.train import prepare

KEY = jax.random.PRNGKey(0)


class Slow:
    """An observation whose conversion lets other threads run, as that of a tensor may."""

    def __array__(self, dtype=None, copy=None):
        time.sleep(0.2)
        return np.zeros(1, np.float32)


def test_info_of_one_actor_is_not_that_of_another():
    numbers = itertools.count()

    class Numbered(gymnasium.Env):
        observation_space = action_space = counting_env.NUMBER

        def __init__(self):
            self.number = next(numbers)

        def reset(self, **given):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            return Slow(), 0.0, True, False, {"number": self.number}

    sizes = RowSizes(2, 1, 1, "float32", info_size=1)
    rows = sizes.on(bytearray(sizes.nbytes()))
    envs = SingleEnvs("numbered", Numbered, rows, 0, 2, ("number",))
    envs.reset()
    threads = [threading.Thread(target=envs.step, args=(i, i + 1)) for i in range(2)]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(rows.info.ravel(), [0, 1])


gymnasium.register("Recorded-v0", counting_env.Recorded, max_episode_steps=10)


@pytest.mark.parametrize(("env", "settings"), [("Recorded-v0", {}), (counting_env.Recorded, {"max_episode_steps": 10})])
def test_simulator_is_never_stepped_beyond_its_time_limit(env, settings):
    made = make_env(env, processes=0, **settings)
    state = made.reset(KEY, 2)
    for _ in range(25):
        state = made.step(state, np.zeros((2, 1), np.float32))
    np.testing.assert_array_equal(state.elapsed, 5)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_vector_environment_may_have_no_time_limit(mode):
    def make():
        return gymnasium.make_vec(
            "Pendulum-v1",
            num_envs=2,
            vectorization_mode="sync",
            max_episode_steps=-1,
            vector_kwargs={"autoreset_mode": mode},
        )

    env = make_env(make, processes=0)
    assert env.episode_length == UNLIMITED
    after = env.step(env.reset(KEY, 2), np.zeros((2, 1), np.float32))
    np.testing.assert_array_equal(after.truncated, False)


def test_episodes_of_a_resumed_run_are_staggered_again(tmp_path):
    """They all begin together, and those of a task that never terminates would all end together from then on."""
    settings = {
        "num_envs": 5, "steps_per_update": 200, "segment_length": 20, "total_steps": 2400, "actors": 1,
        "policy": "mlp(hidden=(8,))", "out": tmp_path,
    }  # fmt: skip
    jaxtrpo.train("Pendulum-v1", progress=False, **settings)
    resumed = prepare("Pendulum-v1", resume=True, **{**settings, "total_steps": 4800})
    limits = jax.device_get(resumed.state.actors.time_limits)
    for found, wanted in zip(limits, first_time_limits(5, 200), strict=True):
        np.testing.assert_array_equal(found[0], wanted)
    episodes = resumed.run(progress=False).metrics["episodes"]
    assert np.all(episodes[-10:] <= 2)  # not five at once
