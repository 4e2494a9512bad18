"""The algorithm of runs for which none is chosen."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from light_env import LightEnvironment

import jaxtrpo
from jaxtrpo.algorithms.surrogates import importance_weighted_advantage
from jaxtrpo.cli import main as cli
from jaxtrpo.training.cases import cases_of
from jaxtrpo.training.prepare import prepare

TINY = {"total_steps": 500_000, "on_update": lambda row, state: False, "progress": False, "actors": 1}


class Many(gymnasium.Env):
    """Observes nothing of interest; the reward is the mean of an action."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, coordinates: int = 12):
        self.action_space = spaces.Box(-1, 1, (coordinates,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.left = 20
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(2, np.float32), float(action.mean()), False, self.left == 0, {}


class Switches(Many):
    def __init__(self):
        self.action_space = spaces.MultiDiscrete([2] * 12)


def algorithm_of(env=Many, **settings):
    run = prepare(env, actors=1, **settings)
    run.close()
    said = [note for note in run.notes if note.startswith("algorithm: trpo_replay, because actions have at least")]
    assert len(said) == (run.config.algorithm == "trpo_replay" and "algorithm" not in settings)
    return run.config.algorithm


@pytest.mark.parametrize(
    ("settings", "algorithm"),
    [
        ({}, "trpo_replay"),
        ({"total_steps": 200_000, "seed": 3}, "trpo_replay"),
        ({"total_steps": 199_999}, "trpo"),
        ({"stop_after_seconds": 100}, "trpo_replay"),
        ({"stop_after_seconds": 99.9}, "trpo"),
        ({"stop_after_seconds": 300, "total_steps": 1000}, "trpo"),
        ({"stop_after_seconds": 60, "total_steps": 1_000_000}, "trpo"),
        ({"discount": 0.99, "noise_correlation": 0.0}, "trpo_replay"),
    ],
    ids=str,
)
def test_long_runs_with_actions_of_many_coordinates_learn_from_a_replay_buffer(settings, algorithm):
    assert algorithm_of(**settings) == algorithm


@pytest.mark.parametrize(
    ("env", "settings", "algorithm"),
    [
        ("HalfCheetah-v5", {}, "trpo_replay"),  # 6 coordinates, and never terminates
        ("HalfCheetah-v5", {"stop_after_seconds": 60}, "trpo_replay"),
        ("HalfCheetah-v5", {"stop_after_seconds": 59}, "trpo"),
        ("HalfCheetah-v5", {"total_steps": 100_000}, "trpo_replay"),
        ("HalfCheetah-v5", {"total_steps": 99_999}, "trpo"),
        ("Swimmer-v5", {}, "trpo"),  # 2, and never terminates
        ("Walker2d-v5", {}, "trpo"),  # 6, and terminates
        ("gymnasium:HalfCheetah-v5", {}, "trpo"),  # of which it is unknown
    ],
    ids=str,
)
def test_half_as_many_coordinates_suffice_where_episodes_never_terminate(env, settings, algorithm):
    assert algorithm_of(env, **settings) == algorithm


def test_note_says_why_the_algorithm_was_chosen():
    whys = {
        "HalfCheetah-v5": "actions have at least 6 coordinates and episodes of HalfCheetah-v5 never end early;",
        "Humanoid-v5": "actions have at least 12 coordinates;",
    }
    for env, why in whys.items():
        run = prepare(env, actors=1)
        run.close()
        assert any(note.startswith(f"algorithm: trpo_replay, because {why}") for note in run.notes)


def test_settings_are_those_of_the_algorithm_when_it_is_chosen():
    run, alike = (prepare(Many, actors=1, **chosen) for chosen in ({}, {"algorithm": "trpo_replay"}))
    assert run.config == alike.config and run.update.sizes == alike.update.sizes
    run.close(), alike.close()


def test_recipe_is_not_mentioned_where_the_default_is_the_same():
    runs = [prepare("Humanoid-v5", actors=1, total_steps=steps) for steps in (1_000_000, 1_000)]
    assert [any("use them with --recipe" in note for note in run.notes) for run in runs] == [False, True]


@pytest.mark.parametrize(
    "env",
    [lambda: Many(11), Switches, LightEnvironment(continuous=True), "brax:humanoid"],
    ids=["fewer", "choices", "image", "program"],
)
def test_other_actions_and_programs_are_learned_with_trpo(env):
    assert algorithm_of(env) == "trpo"


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "trpo"},
        {"policy": "mlp"},
        {"policy": "gru(hidden=8)"},
        {"critic": "linear"},
        {"adapt": "fixed"},
        {"surrogate": importance_weighted_advantage},
        {"max_kl": 0.02},
        {"steps_per_update": 512},
        {"max_steps_per_update": 20_480},
        {"discount": 0.9},
        {"noise_correlation": 0.5},
        {"normalize_observations": False},
        {"frame_stack": 2},
        {"num_envs": 2},
        {"segment_length": 4},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_a_setting_of_learning_was_chosen_for_trpo(settings):
    assert algorithm_of(**settings) == "trpo"


def test_run_that_starts_from_another_is_trained_with_trpo(tmp_path):
    jaxtrpo.train(Many, out=tmp_path, algorithm="trpo", **TINY)
    assert algorithm_of(start_from=tmp_path) == "trpo"


@pytest.mark.parametrize(("first", "later", "algorithm"), [(500_000, 600_000, "trpo_replay"), (1_024, 600_000, "trpo")])
def test_resumed_run_keeps_its_algorithm(tmp_path, first, later, algorithm):
    run = jaxtrpo.train(Many, out=tmp_path, **{**TINY, "total_steps": first})
    assert run.config.algorithm == algorithm
    resumed = jaxtrpo.train(Many, out=tmp_path, resume=True, **{**TINY, "total_steps": later})
    assert resumed.config.algorithm == algorithm and len(resumed.metrics["update"]) > len(run.metrics["update"])


@pytest.mark.parametrize("env", ["Pendulum-v1", "MountainCar-v0"])
def test_resumed_run_is_told_of_no_choice_that_it_cannot_make(env, tmp_path):
    jaxtrpo.train(env, out=tmp_path, algorithm="trpo_replay" if env == "Pendulum-v1" else "trpo", **TINY)
    run = prepare(env, out=tmp_path, resume=True, actors=1)
    run.close()
    assert not any("--algorithm" in note or "--recipe" in note for note in run.notes)


def test_run_of_another_algorithm_is_not_resumed_with_the_default(tmp_path):
    jaxtrpo.train(Many, out=tmp_path, algorithm="npg", **TINY)
    with pytest.raises(ValueError, match="algorithm"):
        prepare(Many, out=tmp_path, resume=True, actors=1)


def test_every_case_of_several_seeds_has_the_default():
    found = jaxtrpo.train_many(Many, seeds=(0, 1), **{**TINY, "actors": 2, "stop_at_return": -1.0})
    assert [each.config.algorithm for each in found] == ["trpo_replay"] * 2


def test_cases_that_differ_in_a_setting_have_one_algorithm():
    """Of these discounts, the first is the default, with which long runs of Humanoid learn otherwise."""
    listed = cases_of([0], {"discount": [0.99, 0.9], "total_steps": 1_000_000})
    assert [case.arguments["algorithm"] for case in listed] == ["trpo", "trpo"]
    chosen = cases_of([0], {"discount": [0.99, 0.9], "algorithm": "ppo"})
    assert [case.arguments["algorithm"] for case in chosen] == ["ppo", "ppo"]
    assert "algorithm" not in cases_of([0], {"discount": 0.99})[0].arguments


def test_trials_of_a_sweep_have_one_algorithm():
    def algorithms(*words):
        sweep = cli.parse(["sweep", "Humanoid-v5", "--grid", "discount=0.99,0.9", *words])
        flags = [sweep._flags({"discount": discount}) for discount in (0.99, 0.9)]
        return [each[each.index("--algorithm") + 1] for each in flags]

    assert algorithms() == ["trpo", "trpo"] and algorithms("--algorithm", "ppo") == ["ppo", "ppo"]
