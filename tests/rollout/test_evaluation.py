"""Which environments a trained policy fits."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np
import pytest
from counting_env import Spaces
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

import jaxtrpo
from jaxtrpo.cli import main as cli
from jaxtrpo.cli.export import Export
from jaxtrpo.envs.gymnasium.actions import action_space_of
from jaxtrpo.envs.gymnasium.make import make_gymnasium_env
from jaxtrpo.ops.moments import Moments
from jaxtrpo.policies.networks import mlp
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.runs.policy_file import save_policy

OBSERVATION = spaces.Box(0, 1, (4,), np.float32)
BOX, CHOICE = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)


def policy_for(space: spaces.Space, observation_size: int = 4) -> TrainedPolicy:
    actions, maker = action_space_of(space), mlp(hidden=())
    params = maker.make(observation_size, actions).init(jax.random.PRNGKey(0))
    zeros = np.zeros(observation_size, np.float32)
    return TrainedPolicy("Some-v1", observation_size, actions, maker, params, Moments(np.float32(10), zeros, zeros + 1))


def made(space: spaces.Space):
    return TimeLimit(Spaces(OBSERVATION, space), 3)


@pytest.mark.parametrize(
    ("trained", "where", "message"),
    [
        (
            BOX,
            CHOICE,
            r"policy's actions are continuous of size 1, but those of Somewhere are discrete with \(2,\) choices",
        ),
        (
            CHOICE,
            BOX,
            r"policy's actions are discrete with \(2,\) choices, but those of Somewhere are continuous of size 1;",
        ),
        (
            CHOICE,
            spaces.Discrete(3),
            r"are discrete with \(2,\) choices, but those of Somewhere are discrete with \(3,\) choices",
        ),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([3, 2]), r"with \(2, 3\) choices, but .*\(3, 2\)"),
        (BOX, spaces.Box(-np.inf, 1, (1,)), "action 0 has two bounds for the policy but not for Somewhere"),
        (
            spaces.Box(np.float32([-1, 0]), np.float32([1, np.inf])),
            spaces.Box(-1, 1, (2,)),
            "action 1 has two bounds for Somewhere but not for the policy",
        ),
        (BOX, spaces.Box(-1, 1, (2,)), "actions of size 1, but those of Somewhere have sizes 4 and 2"),
    ],
)
def test_policy_that_does_not_fit_is_rejected_in_one_line(trained, where, message):
    env = make_gymnasium_env(functools.partial(made, where), name="Somewhere", processes=0)
    with pytest.raises(ValueError, match=message) as error:
        jaxtrpo.evaluate(policy_for(trained), env, episodes=1)
    assert "\n" not in str(error.value) and len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("trained", "where"),
    [
        (BOX, spaces.Box(-3, 7, (1,), np.float64)),
        (BOX, spaces.Box(-1, 1, ())),
        (spaces.Box(0, np.inf, (1,)), spaces.Box(-np.inf, np.inf, (1,))),
        (CHOICE, spaces.Discrete(2, start=5)),
        (spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(2)),
    ],
    ids=repr,
)
def test_policy_acts_in_compatible_environment(trained, where):
    """`Spaces` asserts that its action space contains the actions."""
    found = jaxtrpo.evaluate(policy_for(trained), functools.partial(made, where), episodes=1)
    np.testing.assert_array_equal(found.returns, [0.0])


@pytest.mark.parametrize("prefix", ["", "gymnasium:"])
def test_policy_file_does_not_choose_a_module_to_import(tmp_path, monkeypatch, prefix):
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    policy = dataclasses.replace(policy_for(BOX), env_name=f"{prefix}evil:X-v0")
    with pytest.raises(ValueError, match=r"imports the module .evil.: give env \(--env .*evil:X-v0\) if you trust it$"):
        jaxtrpo.evaluate(policy)
    with pytest.raises(SystemExit, match="imported"):
        jaxtrpo.evaluate(policy, f"{prefix}evil:X-v0")


def test_export_needs_no_environment(tmp_path):
    save_policy(tmp_path, dataclasses.replace(policy_for(BOX), env_name="evil:X-v0"))
    assert callable(Export(tmp_path).prepare())
    with pytest.raises(ValueError, match="max_episode_steps=0"):
        Export(tmp_path, max_episode_steps=0).prepare()


@pytest.mark.parametrize("command", ["evaluate", "video"])
def test_commands_reject_policy_that_does_not_fit(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    jaxtrpo.save_policy(tmp_path, policy_for(BOX))
    assert cli.main([command, str(tmp_path), "--env", "CartPole-v1"]) != 0
    assert (
        "actions are continuous of size 1, but those of CartPole-v1 are discrete with (2,) choices"
        in capsys.readouterr().err
    )
