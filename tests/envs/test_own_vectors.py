"""Functions that return vector environments, in each mode of automatic resets."""

import functools

import gymnasium
import jax
import numpy as np
import pytest
from counting_env import CountingEnv, Telling, generous
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList
from maze_env import Maze
from test_info import SETTINGS as OF_RUNS

import jaxtrpo
from jaxtrpo.envs.registry import make_env
from jaxtrpo.training.prepare import prepare

KEY, ACTION = jax.random.PRNGKey(0), np.zeros((6, 2), np.float32)
SETTINGS = {name: value for name, value in OF_RUNS.items() if name != "num_envs"}


def counting(mode, number=3):
    return SyncVectorEnv([functools.partial(CountingEnv, copies=True)] * number, autoreset_mode=mode)


def telling(mode):
    return SyncVectorEnv([Telling] * 3, autoreset_mode=mode)


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_steps_are_those_of_single_environments(mode, processes):
    """Of two vector environments with three environments each; episode e of an environment has 2 + e % 3 steps."""
    env = make_env(functools.partial(counting, mode), processes=processes)
    assert (env.envs_per_simulator, env.plan.steppers(6)[0][0].vector) == (3, True)
    assert [config.edges for config in env.plan.steppers(6)[0]] == ([(0, 3, 6)] if not processes else [(0, 3), (3, 6)])
    state, lengths, steps = env.reset(KEY, 6), [], 0
    for _ in range(24):
        state = env.step(state, ACTION)
        valid = ~state.invalid
        steps += int(valid[0])
        if valid[0] and (state.terminated | state.truncated)[0]:
            lengths.append(steps)
            np.testing.assert_array_equal(state.final_obs[:, 0], [steps] * 6)
            assert bool(state.terminated[0]) == (len(lengths) % 2 == 1)
            steps = 0
    assert lengths[:6] == [3, 4, 2, 3, 4, 2]
    env.close()


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("actors", [1, 2])
def test_its_environments_are_those_of_the_training(mode, actors):
    maker = functools.partial(telling, mode)
    result = jaxtrpo.train(maker, actors=actors, log_info="steps, total", **SETTINGS)
    assert result.config.num_envs == 3 * actors
    metrics = result.metrics
    np.testing.assert_allclose(metrics["total"], metrics["mean_return"], rtol=1e-5)
    np.testing.assert_allclose(metrics["steps"], metrics["mean_length"], rtol=1e-6)
    assert len(jaxtrpo.evaluate(result.policy, maker, episodes=4).returns) == 4


def test_number_of_environments_is_a_multiple():
    maker = functools.partial(counting, AutoresetMode.SAME_STEP)
    settings = {name: value for name, value in SETTINGS.items() if name != "progress"}
    run = prepare(maker, actors=2, num_envs=12, **settings)
    run.close()
    assert run.config.num_envs == 12
    with pytest.raises(
        ValueError, match="num_envs=8 must be a multiple of 6, the 3 environments of .* for each of the 2 actors"
    ):
        prepare(maker, actors=2, num_envs=8, **settings)
    with pytest.raises(ValueError, match="num_envs=4 must be a multiple of 3"):
        make_env(maker, processes=0).reset(KEY, 4)


def test_time_limit_is_applied_where_resets_are_ours():
    make = lambda mode: SyncVectorEnv([lambda: CountingEnv(lasts=True)] * 3, autoreset_mode=mode)  # noqa: E731
    env = make_env(functools.partial(make, AutoresetMode.DISABLED), max_episode_steps=4, processes=0)
    assert env.episode_length == 4
    with pytest.raises(ValueError, match="max_episode_steps=4: .* makes a vector environment that resets itself"):
        make_env(functools.partial(make, AutoresetMode.SAME_STEP), max_episode_steps=4)


def test_as_many_actors_as_have_whole_vectors(tmp_path, capsys):
    """Of two devices, one is used for a single vector environment, and the run says so."""
    maker = functools.partial(counting, AutoresetMode.SAME_STEP)
    settings = {name: value for name, value in SETTINGS.items() if name not in ("progress", "actors")}
    for number, actors in ((3, 1), (6, 2)):
        run = prepare(maker, num_envs=number, **settings)
        run.close()
        assert (run.actors.count, run.config.num_envs) == (actors, number)
        assert any("actors: 1 of 2 devices" in note for note in run.notes) == (actors == 1)


def limited(max_episode_steps=9, mode=AutoresetMode.SAME_STEP):
    one = functools.partial(CountingEnv, lasts=True)
    return SyncVectorEnv([lambda: gymnasium.wrappers.TimeLimit(one(), max_episode_steps)] * 2, autoreset_mode=mode)


def test_time_limit_is_that_which_the_function_takes():
    assert make_env(limited, max_episode_steps=5, processes=0).episode_length == 5


def test_infos_may_be_a_list_of_those_of_each_environment():
    """With the last observation of an episode, and what was said of it, among them."""
    env = make_env(lambda: DictInfoToList(counting(AutoresetMode.SAME_STEP)), processes=0)
    state, lengths = env.reset(KEY, 3), []
    for _ in range(12):
        before, state = state.obs[:, 0], env.step(state, ACTION[:3])
        np.testing.assert_array_equal(state.final_obs[:, 0], before + 1)
        if (state.terminated | state.truncated)[0]:
            lengths.append(int(state.final_obs[0, 0]))
    assert lengths == [3, 4, 2, 3]
    maker = lambda: DictInfoToList(telling(AutoresetMode.SAME_STEP))  # noqa: E731
    metrics = jaxtrpo.train(maker, actors=1, log_info="steps, total", **SETTINGS).metrics
    np.testing.assert_allclose(metrics["total"], metrics["mean_return"], rtol=1e-5)
    np.testing.assert_allclose(metrics["steps"], metrics["mean_length"], rtol=1e-6)


@pytest.mark.parametrize("convention", ["observation", "method", "info"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_masks_are_refused(convention, wrapped):
    kind = Others if wrapped else SyncVectorEnv
    if wrapped and convention == "method":
        pytest.skip("nobody could call it")
    with pytest.raises(ValueError, match="makes a vector environment with action masks, which are not supported there"):
        make_env(lambda: kind([lambda: Maze(convention)] * 2), processes=0)


class Others(gymnasium.vector.VectorEnv):
    """A vector environment of which it is not known that there are single ones in it."""

    def __init__(self, makers):
        self.inner = SyncVectorEnv(makers)
        self.num_envs, self.metadata = self.inner.num_envs, self.inner.metadata
        for name in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
            setattr(self, name, getattr(self.inner, name))

    def reset(self, **arguments):
        return self.inner.reset(**arguments)

    def step(self, action):
        return self.inner.step(action)


def test_number_must_stay_the_same():
    numbers = iter([3, 3, 4])
    env = make_env(lambda: counting(AutoresetMode.SAME_STEP, next(numbers)), processes=0)
    state = env.reset(KEY, 3)
    assert "returned a vector environment of size 4 after one of size 3" in str(env.failure) and not state.obs.any()


def test_vector_environment_is_not_rendered():
    env = make_env(lambda: SyncVectorEnv([generous] * 2), processes=0)
    with pytest.raises(ValueError, match="makes a vector environment, which cannot be rendered"):
        env.watched(lambda obs: obs, 0, 10, 10)


class OfSuperSuit(gymnasium.vector.VectorEnv):
    """Resets all agents together in the last step, and tells their observations of it, in a list of infos."""

    metadata = {}  # noqa: RUF012
    __module__ = "supersuit.vector.markov_vector_wrapper"

    def __init__(self):
        self.num_envs, self.steps = 2, 0
        self.observation_space, self.action_space = gymnasium.spaces.Box(0, 9, (1,)), gymnasium.spaces.Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self._observe(), [{}, {}]

    def step(self, actions):
        self.steps += 1
        dead = np.array([self.steps >= 2, self.steps >= 3])
        infos = [{"is_success": False}, {"is_success": False}]
        obs = self._observe()
        if dead.all():
            infos = [{"terminal_observation": each, "steps": 3, "is_success": True} for each in obs]
            obs = self.reset()[0]
        return obs, np.ones(2, np.float32), dead.astype(np.uint8), np.zeros(2, np.uint8), infos

    def _observe(self):
        return np.full((2, 1), self.steps, np.float32)


def test_agents_of_supersuit_are_environments():
    env = make_env(OfSuperSuit, processes=0).with_info(("steps",), success=True)
    assert env.info_columns == ("success_rate", "steps")
    state = env.reset(KEY, 2)
    found = []
    for _ in range(4):
        state = env.step(state, ACTION[:2])
        found.append([*state.terminated.tolist(), *state.final_obs[:, 0].tolist(), *state.obs[:, 0].tolist()])
    assert found[0] == [False, False, 1, 1, 1, 1]
    assert found[1] == [True, False, 2, 2, 2, 2]
    assert found[2] == [True, True, 3, 3, 0, 0]
    assert found[3] == [False, False, 1, 1, 1, 1]
    np.testing.assert_array_equal(env.info(state)["steps"], [3, 3])
