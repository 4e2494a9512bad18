"""Masks of Gymnasium environments are found, checked and followed, whatever convention says which moves are legal."""

from __future__ import annotations

import functools

import counting_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from maze_env import COUNTS, Ends, Maze

import jaxtrpo
from jaxtrpo.envs import abilities
from jaxtrpo.envs.gymnasium.errors import SimulatorError
from jaxtrpo.envs.gymnasium.make import make_gymnasium_env
from jaxtrpo.envs.registry import make_env
from jaxtrpo.parallel.actors import join_envs

SETTINGS = {"total_steps": 256, "num_envs": 4, "actors": 1, "progress": False, "seed": 100}


@pytest.mark.parametrize("convention", ["observation", "method", "info"])
def test_masks_are_those_of_the_simulator(convention):
    env = make_gymnasium_env(lambda: Maze(convention), processes=0)
    assert env.masks_actions and env.observation_size == 2 and env.action_counts == COUNTS
    state = jax.jit(env.reset, static_argnums=1)(jax.random.PRNGKey(0), 2)
    step, plain = jax.jit(env.step), Maze("method")
    for taken in range(9):
        plain.taken = taken % 4
        assert state.mask.tolist() == [plain.mask().tolist()] * 2
        np.testing.assert_array_equal(state.obs, [[plain.taken, 7]] * 2)
        state = step(state, jnp.array([[plain.taken % 3, 0]] * 2))
        assert state.final_obs[:, 0].tolist() == [plain.taken + 1] * 2
        assert bool(state.terminated.all()) == (plain.taken == 3)


@pytest.mark.parametrize("convention", ["observation", "method", "info"])
def test_training_makes_legal_moves_only(convention, tmp_path):
    """The simulator fails at an illegal move."""
    result = jaxtrpo.train(lambda: Maze(convention), out=tmp_path / "run", **SETTINGS)
    assert result.metrics["return_100"][-1] == 4
    policy = jaxtrpo.load_policy(tmp_path / "run")
    env = Maze(convention)
    obs, _ = env.reset()
    for _ in range(4):
        given = {} if convention == "observation" else {"action_mask": env.mask()}
        action = policy(obs, **given)
        np.testing.assert_array_equal(action, result.policy(obs, **given))
        obs, *_ = env.step(action)
    assert jaxtrpo.evaluate(policy, lambda: Maze(convention), episodes=3).mean == 4


def test_workers_and_two_actors_make_legal_moves():
    def maze():
        return Maze("info", spaces_of_one=True)

    env = make_gymnasium_env(maze, processes=2, groups=2)
    result = jaxtrpo.train(env, **{**SETTINGS, "actors": 2})
    assert result.metrics["return_100"][-1] == 4
    assert join_envs(result.state.actors.env.mask).shape == (4, 3)


@pytest.mark.parametrize(
    "convention, wrong, message",
    [
        ("method", "none", "mask leaves no legal action"),
        ("observation", "none", "mask leaves no legal action"),
        ("method", "short", "mask has 4 entries, but there are 5 choices"),
        ("info", "missing", "info has no action_mask"),
    ],
)
def test_wrong_mask_names_the_environment(convention, wrong, message):
    def crooked():
        return Maze(convention, wrong)

    with pytest.raises((ValueError, SimulatorError), match=rf"crooked.*{message}"):
        jaxtrpo.train(crooked, **SETTINGS)


def test_observation_of_nothing_but_a_mask_is_refused():
    space = spaces.Dict({"action_mask": spaces.Box(0, 1, (2,), np.int8)})
    with pytest.raises(ValueError, match="Spaces: the observation holds nothing but the action mask$"):
        make_env(functools.partial(counting_env.Spaces, space, spaces.Discrete(2)))


def test_columns_besides_a_mask_are_in_the_same_order_in_training_and_after():
    env = make_env(counting_env.Unsorted, processes=0, max_episode_steps=9)
    np.testing.assert_array_equal(env.reset(jax.random.PRNGKey(0), 1).obs, [[1, 2]])
    np.testing.assert_array_equal(env.flatten(counting_env.Unsorted().seen()), [1, 2])


def test_environment_without_masks_is_not_wrapped():
    env = make_gymnasium_env("CartPole-v1")
    assert not getattr(env, "masks_actions", False)
    state = jax.eval_shape(lambda key: env.reset(key, 2), jax.random.PRNGKey(0))
    assert state.mask == ()


def test_mask_of_continuous_actions_is_an_observation_like_any_other():
    class Continuous(Maze):
        def __init__(self):
            super().__init__("info")
            self.action_space = spaces.Box(-1, 1, (1,), np.float32)

        def step(self, action):
            self.taken += 1
            return *self.result()[:1], 1.0, self.taken == self.length, False, {"action_mask": np.ones(5)}

    assert not getattr(make_gymnasium_env(Continuous), "masks_actions", False)


def test_attributes_reach_simulators_behind_masks():
    seen = []

    def lengthen(row, state):
        jaxtrpo.set_env(state, length=6)
        seen.append(row["mean_length"])

    jaxtrpo.train(
        lambda: Maze("method"), **{**SETTINGS, "total_steps": 512, "steps_per_update": 64}, on_update=lengthen
    )
    assert seen[0] == 4 and seen[-1] == 6


def test_simulator_that_fails_later_ends_the_run():
    """After the steps on trial, which a plan is made by."""

    class Late(Maze):
        moves = 0

        def step(self, action):
            self.moves += 1
            if self.moves > 70:
                raise KeyError("no such thing")
            return super().step(action)

    with pytest.raises(SimulatorError, match="no such thing"):
        jaxtrpo.train(lambda: Late("method"), **{**SETTINGS, "total_steps": 2000})


@pytest.mark.parametrize(
    ("convention", "end"), [("observation", "zeros"), ("method", "zeros"), ("info", "zeros"), ("info", "absent")]
)
def test_end_of_an_episode_needs_no_legal_move(convention, end):
    """As in environments of PettingZoo, where none is left."""
    env = make_gymnasium_env(lambda: Ends(convention, end), processes=0)
    state = env.reset(jax.random.PRNGKey(0), 1)
    for taken in range(8):
        state = env.step(state, np.array([[taken % 4 % 3, 0]]))
        assert state.terminated[0] == (taken % 4 == 3)
    assert env.failure is None and not state.invalid[0]


@pytest.mark.parametrize("convention", ["observation", "method", "info"])
def test_entries_of_info_are_logged_behind_masks(convention):
    class Telling(Maze):
        def step(self, action):
            obs, reward, over, cut, info = super().step(action)
            return obs, reward, over, cut, {**info, "left": 10.0 * self.taken, "is_success": over}

    metrics = jaxtrpo.train(lambda: Telling(convention), log_info="left", **SETTINGS).metrics
    ended = metrics["episodes"] > 0
    assert ended.all()
    np.testing.assert_allclose(metrics["left"][ended], 10 * metrics["mean_length"][ended])
    np.testing.assert_array_equal(metrics["success_rate"][ended], 1)


def test_environment_behind_a_mask_keeps_its_abilities():
    """Its time limit may be shortened, its simulators are changed, and a copy has others."""
    env = make_gymnasium_env(lambda: Maze("method"), processes=0, max_episode_steps=99)
    state = env.reset(jax.random.PRNGKey(0), 2)
    after = env.step(state._replace(elapsed=jnp.array([98, 0])), np.zeros((2, 2), np.int32))
    assert after.truncated.tolist() == [True, False]
    other = env.copy()
    other.reset(jax.random.PRNGKey(0), 2)
    again = env.step(after, np.array([[0, 0], [1, 0]]))  # of simulators that are still its own
    assert other is not env and not again.invalid.any()
    assert abilities.times_changed(env) == 0
    jaxtrpo.set_env(again, length=6)
    assert abilities.times_changed(env) == 1
