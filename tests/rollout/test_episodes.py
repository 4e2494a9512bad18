"""Evaluations that sample actions, recordings of their episodes, and the interval of their mean."""

import jax
import numpy as np
import pytest
import scipy.stats

import jaxtrpo
from jaxtrpo.cli import main as cli
from jaxtrpo.ops.keys import key_for
from jaxtrpo.rollout.evaluation import Evaluation, evaluation_key
from jaxtrpo.runs.policy_file import save_policy

ENV = "InvertedPendulum-v5"


@pytest.fixture(scope="module")
def policy():
    return jaxtrpo.train(ENV, total_steps=64, num_envs=4, steps_per_update=16, progress=False).policy


def test_interval_is_that_of_scipy():
    returns = np.array([1.0, 5.0, 2.0, 4.5])
    evaluation = Evaluation(float(np.mean(returns)), float(np.std(returns)), returns)
    wanted = scipy.stats.t.interval(0.95, 3, loc=np.mean(returns), scale=scipy.stats.sem(returns))
    np.testing.assert_allclose(evaluation.interval, wanted)
    assert np.all(np.isnan(Evaluation(1.0, 0.0, np.ones(1)).interval))


@pytest.mark.parametrize("limit", [None, 3])
def test_recording_holds_the_steps_of_whole_episodes(policy, limit):
    found = jaxtrpo.evaluate(policy, ENV, episodes=3, seed=5, max_episode_steps=limit, record=True)
    plain = jaxtrpo.evaluate(policy, ENV, episodes=3, seed=5, max_episode_steps=limit)
    np.testing.assert_array_equal(found.returns, plain.returns)
    assert plain.recording is None
    steps = found.recording
    np.testing.assert_allclose(steps.actions, policy(steps.observations), rtol=1e-5)
    for episode, return_ in enumerate(found.returns):
        own = np.flatnonzero(steps.episodes == episode)
        assert np.array_equal(own, np.arange(own[0], own[-1] + 1)) and steps.rewards[own].sum() == return_
        ends = (steps.terminated | steps.truncated)[own]
        assert ends[-1] and not ends[:-1].any() and steps.truncated[own[-1]] == (len(own) == limit)
    assert len(steps.rewards) == len(steps.observations) == len(steps.actions) and steps.episodes[-1] == 2


def test_sampled_actions_are_those_of_the_policy_with_a_key_per_episode_and_step(policy):
    found = jaxtrpo.evaluate(policy, episodes=3, seed=5, stochastic=True, record=True)
    plain = jaxtrpo.evaluate(policy, episodes=3, seed=5, stochastic=True)
    np.testing.assert_array_equal(found.returns, plain.returns)
    steps = found.recording
    assert not np.allclose(steps.actions, policy(steps.observations), atol=0.01)
    keys = jax.random.split(key_for("noise", evaluation_key(5)), 4)  # 4 environments for 3 episodes on 2 actors
    for episode in range(3):
        own = np.flatnonzero(steps.episodes == episode)
        for number, step in enumerate(own):
            wanted = policy(steps.observations[step], key=jax.random.fold_in(keys[episode], number))
            np.testing.assert_allclose(steps.actions[step], wanted, rtol=1e-4, atol=1e-5)


def test_command_prints_the_interval_and_writes_the_recording(policy, tmp_path, capsys):
    save_policy(tmp_path, policy)
    place = tmp_path / "steps.npz"
    words = ["evaluate", str(tmp_path), "--episodes", "3", "--seed", "5", "--stochastic"]
    assert cli.main([*words, "--record", str(place)]) == 0
    first, *returns, last = capsys.readouterr().out.splitlines()
    wanted = jaxtrpo.evaluate(policy, episodes=3, seed=5, stochastic=True, record=True)
    low, high = wanted.interval
    assert f"mean {wanted.mean:.2f} (95 % confidence interval {low:.2f} to {high:.2f})" in first
    assert [float(each) for each in returns] == wanted.returns.tolist() and last == str(place)
    with np.load(place) as saved:
        assert list(saved) == ["observations", "actions", "rewards", "terminated", "truncated", "episodes"]
        for name, value in saved.items():
            np.testing.assert_array_equal(value, getattr(wanted.recording, name))
    for wrong in ("steps.txt", "nowhere/steps.npz"):
        assert cli.main([*words, "--record", str(tmp_path / wrong)]) == cli.INPUT_ERROR
        assert "error: record=" in capsys.readouterr().err
