"""Which environments a trained policy fits."""

from __future__ import annotations

import dataclasses
import functools

import gymnasium
import jax
import numpy as np
import pytest
from counting_env import CountingEnv, Spaces
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

import jaxtrpo
from jaxtrpo.adapt import Rule
from jaxtrpo.cli import main as cli
from jaxtrpo.cli.export import Export
from jaxtrpo.envs.fixed_starts import Repeated
from jaxtrpo.envs.gymnasium.actions import action_space_of
from jaxtrpo.envs.gymnasium.make import make_gymnasium_env
from jaxtrpo.ops.moments import Moments
from jaxtrpo.policies.networks import mlp
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.rollout.evaluation import where_to_act
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


TINY = {
    "policy": "mlp(hidden=())", "critic": "none", "num_envs": 2, "steps_per_update": 8, "segment_length": 4,
    "total_steps": 8, "actors": 1, "progress": False,
}  # fmt: skip


def make_pendulum(g: float = 10.0):
    return gymnasium.make("Pendulum-v1", g=g)


def test_policy_is_evaluated_in_the_object_that_it_was_trained_in(tmp_path):
    """As far as a name and options can tell which that was."""
    env = jaxtrpo.make_env("Pendulum-v1", g=5.0, max_episode_steps=9, processes=0)
    jaxtrpo.train(env, out=tmp_path, **TINY)
    policy = jaxtrpo.load_policy(tmp_path)
    wanted = "Pendulum-v1", 9, {"g": 5.0, "processes": 0}
    assert where_to_act(policy, None, None) == wanted
    assert where_to_act(policy, "Pendulum-v1", None) == ("Pendulum-v1", None, {})  # which is another one
    again = jaxtrpo.load_config(tmp_path)
    assert (again["env"], again["max_episode_steps"], again["env_options"]) == ("Pendulum-v1", 9, "g=5.0, processes=0")
    many = jaxtrpo.train_many(jaxtrpo.make_env("Hopper-v5", max_episode_steps=9), seeds=(0, 1), **TINY)
    assert where_to_act(many[0].policy, None, None) == ("Hopper-v5", 9, {})


@pytest.mark.parametrize(
    "change",
    [
        lambda env: jaxtrpo.MujocoEnvironment(env.task._replace(reward=lambda model, data, action: data.qpos[0])),
        lambda env: Repeated(env, 2),
    ],
)
def test_policy_of_a_changed_environment_does_not_name_the_usual_one(change):
    changed = change(jaxtrpo.make_env("InvertedPendulum-v5"))
    policy = jaxtrpo.train(changed, **TINY).policy
    with pytest.raises(
        ValueError, match="^env='InvertedPendulum-v5 .own.', .* is a function or an environment of your"
    ):
        jaxtrpo.evaluate(policy)
    assert len(jaxtrpo.evaluate(policy, changed, episodes=2).returns) == 2


def test_policy_of_a_function_that_changes_a_task_does_not_name_the_usual_one(tmp_path):
    (tmp_path / "changed.py").write_text(
        "import jaxtrpo\n"
        "def make(frame_skip=2):\n"
        "    task = jaxtrpo.make_env('InvertedPendulum-v5').task\n"
        "    return jaxtrpo.MujocoEnvironment(task._replace(frame_skip=frame_skip))\n"
    )
    name = f"{tmp_path}/changed.py:make"
    jaxtrpo.train(name, env_options={"frame_skip": 3}, out=tmp_path / "run", **TINY)
    policy = jaxtrpo.load_policy(tmp_path / "run")
    assert jaxtrpo.load_config(tmp_path / "run")["env"] == name
    assert where_to_act(policy, name, None) == (name, None, {"frame_skip": 3})
    again = dataclasses.replace(policy, env_name=f"{tmp_path}/another.py:make")  # in a process that did not import it
    with pytest.raises(ValueError, match="imports the module .*: give env"):
        jaxtrpo.evaluate(again)


def test_class_that_is_given_again_has_the_options_of_training():
    options = {"lasts": True, "processes": 0}
    policy = jaxtrpo.train(CountingEnv, max_episode_steps=7, env_options=options, **TINY).policy
    assert where_to_act(policy, CountingEnv, None) == (CountingEnv, 7, options)


def test_run_with_parts_of_ones_own_cannot_be_repeated_from_its_file_alone(tmp_path):
    """And says which of them must be given again."""
    rule = Rule(init=lambda settings: (), update=lambda state, settings, metrics: (state, settings))
    env = jaxtrpo.make_env("InvertedPendulum-v5")
    options = {"env_options": {"processes": 0}}
    for number, (where, parts, message) in enumerate(
        (
            (
                make_pendulum,
                options,
                "^unknown environment 'gymnasium:make_pendulum'; .*; if it is a function of your",
            ),
            (
                Repeated(env, 2),
                {},
                r"^InvertedPendulum-v5 \(own\) was built or changed by yourself: give",
            ),
            (env, {"adapt": rule}, "^adapt='custom' is your own, which text cannot describe"),
        )
    ):
        jaxtrpo.train(where, out=tmp_path / str(number), **{**TINY, **parts})
        again = jaxtrpo.load_config(tmp_path / str(number))
        with pytest.raises(ValueError, match=message):
            jaxtrpo.train(**again)
        given = {**again, "env": where, **{name: part for name, part in parts.items() if name == "adapt"}}
        assert len(jaxtrpo.train(**given, progress=False).metrics["update"]) == 1


def test_options_that_no_file_can_hold_leave_an_environment_without_a_name():
    made = jaxtrpo.make_env("Pendulum-v1", g=np.float32(5), processes=0)
    assert jaxtrpo.train(made, **TINY).policy.env_name == "Pendulum-v1 (own)"


def test_function_that_is_given_again_has_the_limit_and_options_of_training(tmp_path, monkeypatch):
    options = {"g": 3.0, "processes": 0}
    policy = jaxtrpo.train(make_pendulum, max_episode_steps=7, env_options=options, **TINY).policy
    assert where_to_act(policy, make_pendulum, None) == (make_pendulum, 7, options)
    assert where_to_act(policy, make_pendulum, 5, "processes=0") == (make_pendulum, 5, {"processes": 0})
    assert where_to_act(policy, made, None) == (made, None, {})
    (tmp_path / "where.py").write_text("from test_evaluation import make_pendulum")
    named = dataclasses.replace(policy, env_name=f"{tmp_path}/where.py:make_pendulum")
    assert where_to_act(named, named.env_name, None) == (named.env_name, 7, options)
    elsewhere = dataclasses.replace(named, env_options="python='other/bin/python'")
    with pytest.raises(ValueError, match=r"repeat them \(--env-options\) if you trust it$"):
        where_to_act(elsewhere, named.env_name, None)
