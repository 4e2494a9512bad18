"""Helpers of the tests: what may share compiled functions."""

from __future__ import annotations

import gymnasium
import pytest
from probe import ProbeEnvironment
from support import kind_of, shared_programs

import jaxtrpo
from jaxtrpo.adapt import Rule
from jaxtrpo.algorithms.surrogates import importance_weighted_advantage
from jaxtrpo.training.prepare import plan

RULE = Rule(init=lambda hyperparameters: (), update=lambda state, hyperparameters, metrics: (state, hyperparameters))


def parts(**settings):
    with shared_programs():
        return plan(ProbeEnvironment(), {"steps_per_update": 32, **settings}).update.parts


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "trpo(gae_lambda=0.5)"},
        {"policy": "mlp(hidden=(8,))"},
        {"critic": "linear"},
        {"adapt": "fixed"},
        {"adapt": RULE},
        {"adapt": RULE._replace(update=lambda state, hyperparameters, metrics: (state, dict(hyperparameters)))},
        {"surrogate": importance_weighted_advantage},
        {"discount": 0.5},
        {"normalize_observations": False},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_runs_that_differ_in_what_is_compiled_in_share_nothing(settings):
    assert parts(**settings) != parts() and parts(**settings) == parts(**settings)


def test_runs_that_differ_in_data_share():
    assert parts(seed=1, total_steps=100, max_kl=0.1) == parts()


def test_environments_share_if_they_are_known_to_be_equal():
    def pendulum():
        return jaxtrpo.make_env("InvertedPendulum-v5")

    task = pendulum().task
    other = jaxtrpo.MujocoEnvironment(task._replace(reward=lambda model, data, action: data.qpos[0]))
    assert kind_of(pendulum()) == kind_of(pendulum()) != kind_of(other)
    assert kind_of(jaxtrpo.MujocoEnvironment(task._replace(episode_length=3))) != kind_of(pendulum())
    assert kind_of(ProbeEnvironment()) == kind_of(ProbeEnvironment()) is not None
    assert kind_of(jaxtrpo.make_env(lambda: gymnasium.make("Pendulum-v1"), processes=0)) is None
