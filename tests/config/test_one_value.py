"""Each setting has one value: contradictory values are rejected, and defaults never contradict given values."""

from __future__ import annotations

import re

import pytest

import jaxtrpo
from jaxtrpo.adapt import chain, exponential, fixed, linear, margin, trust
from jaxtrpo.algorithms.trpo import trpo
from jaxtrpo.cli import main as cli
from jaxtrpo.config import Config
from jaxtrpo.config.specs import parse, settings_in
from jaxtrpo.runs.config_file import save_config
from jaxtrpo.runs.sweep.space import with_settings
from jaxtrpo.training.prepare import prepare

PENDULUM = "InvertedPendulum-v5"
BOTH = "contradict each other; give only one of them"


@pytest.mark.parametrize(
    ("settings", "first", "second"),
    [
        ({"algorithm": "trpo(max_kl=0.05)", "max_kl": 0.01}, "trpo(max_kl=0.05)", "max_kl=0.01"),
        ({"algorithm": "trpo(max_kl=0.01)", "max_kl": 0.05}, "trpo(max_kl=0.01)", "max_kl=0.05"),
        ({"algorithm": trpo(max_kl=0.05), "max_kl": 0.01}, "trpo(max_kl=0.05)", "max_kl=0.01"),
        (
            {"adapt": "trust(max_steps_per_update=4096)", "max_steps_per_update": 8192},
            "trust(max_steps_per_update=4096)",
            "max_steps_per_update=8192",
        ),
        (
            {"adapt": chain(trust(max_steps_per_update=4096), fixed()), "max_steps_per_update": 8192},
            "trust(max_steps_per_update=4096)",
            "max_steps_per_update=8192",
        ),
    ],
)
def test_contradictory_values_of_a_setting_are_rejected(settings, first, second):
    with pytest.raises(ValueError, match=BOTH) as error:
        prepare(PENDULUM, **settings)
    assert first in str(error.value) and second in str(error.value) and len(str(error.value)) < 200
    with pytest.raises(ValueError, match=BOTH):
        jaxtrpo.train_many(PENDULUM, **settings)


@pytest.mark.parametrize(
    ("settings", "max_kl", "largest"),
    [
        ({"algorithm": "trpo(max_kl=0.05)", "max_kl": 0.05}, 0.05, 10_240),
        ({"algorithm": trpo(max_kl=0.05)}, 0.05, 10_240),
        ({"algorithm": trpo(gae_lambda=0.5), "max_kl": 0.05}, 0.05, 10_240),
        ({"adapt": "trust(max_steps_per_update=4096)", "max_steps_per_update": 4096}, 0.01, 4096),
        ({"adapt": "trust(max_steps_per_update=4096)"}, 0.01, 4096),
        ({"adapt": "linear(max_kl=0.001)", "max_kl": 0.05}, 0.05, 1024),  # final value and initial value
    ],
)
def test_a_value_given_once_is_used(settings, max_kl, largest):
    run = prepare(PENDULUM, **settings)
    run.close()
    assert (run.config.max_kl, run.config.max_steps_per_update) == (max_kl, largest)
    assert float(run.update.hyperparameters()["max_kl"]) == pytest.approx(max_kl)


def test_settings_in_returns_the_settings_of_a_spec_string():
    for spec in ("trpo", "mine(max_kl=1)", "not a spec"):
        assert settings_in("algorithm", spec) == []
    assert settings_in("algorithm", "ppo(clip=0.1, kl_stop=None)") == [("clip", 0.1), ("kl_stop", None)]
    rule = "chain(fixed, trust(gain=0.1), linear(over=5, max_kl=0))"
    assert settings_in("adapt", rule) == [("gain", 0.1), ("over", 5)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--algorithm", "trpo(max_kl=0.05)", "--max-kl", "0.01"], "algorithm='trpo(max_kl=0.05)' and max_kl=0.01"),
        (["--max-kl", "0.05", "--max_kl=0.01"], "--max-kl 0.05 and --max_kl=0.01"),
        (["--normalize-observations", "--no-normalize-observations"], "--normalize-observations and --no-normalize-"),
    ],
)
def test_contradictory_flags_are_rejected(words, told, capsys):
    assert cli.main(["train", PENDULUM, *words]) == cli.INPUT_ERROR
    error = capsys.readouterr().err
    assert told in error and BOTH in error


@pytest.mark.parametrize(
    "words",
    [
        ["train", PENDULUM, "--max-kl", "0.05", "--max-kl=0.05"],
        ["train", PENDULUM, "--quiet", "--max-kl", "0.05", "--quiet"],
        ["sweep", PENDULUM, "--max-kl", "0.05", "--grid", "discount=0.9,1", "--grid", "max_kl=0.01"],  # rejected later
    ],
)
def test_repeating_a_flag_with_the_same_value_is_allowed(words):
    assert cli.parse(words).config.max_kl == 0.05  # pyright: ignore


@pytest.mark.parametrize(
    ("run", "typed", "algorithm", "max_kl"),
    [
        (Config(algorithm="trpo", max_kl=0.01), ["--algorithm", "trpo(max_kl=0.05)"], "trpo(max_kl=0.05)", None),
        (Config(algorithm="trpo", max_kl=0.02), ["--algorithm", "trpo(gae_lambda=0.5)"], "trpo(gae_lambda=0.5)", 0.02),
        (Config(algorithm="trpo(max_kl=0.05)", max_kl=0.05), ["--max-kl", "0.01"], "trpo()", 0.01),
        (Config(algorithm="trpo(max_kl=0.05)", max_kl=0.05), ["--seed", "1"], "trpo(max_kl=0.05)", 0.05),
    ],
)
def test_flags_override_settings_from_config_file(run, typed, algorithm, max_kl, tmp_path):
    save_config(tmp_path, PENDULUM, run)
    found = cli.parse(["train", "--config", str(tmp_path), *typed]).config  # pyright: ignore
    assert (found.algorithm, found.max_kl) == (algorithm, max_kl)
    parse("algorithm", found.algorithm)


def test_contradictory_flags_are_rejected_with_config_file(tmp_path, capsys):
    save_config(tmp_path, PENDULUM, Config(algorithm="trpo", max_kl=0.01))
    words = ["--algorithm", "trpo(max_kl=0.05)", "--max-kl", "0.02"]
    assert cli.main(["train", "--config", str(tmp_path), *words]) == cli.INPUT_ERROR
    assert BOTH in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "tried"),
    [
        ({"max_kl": 0.05}, {"max_kl": 0.01}),
        ({"algorithm": "trpo(max_kl=0.05)"}, {"max_kl": 0.01}),
        ({"algorithm": "trpo(max_kl=0.05)"}, {"algorithm_max_kl": 0.01}),
        ({"critic": "mlp(epochs=3)"}, {"critic_epochs": 5}),
        ({}, {"algorithm_max_kl": 0.05, "max_kl": 0.01}),
    ],
)
def test_sweep_rejects_values_that_contradict_its_flags(given, tried):
    with pytest.raises(ValueError, match="contradict"):
        with_settings({**vars(Config()), **given}, tried, lambda part: "mlp")


def test_sweep_combines_a_spec_string_with_its_settings():
    tried = {"critic_epochs": 5, "critic": "mlp(hidden=(8,))"}
    assert with_settings(vars(Config()), tried, lambda part: "mlp")["critic"] == "mlp(hidden=(8,), epochs=5)"
    assert (
        with_settings(vars(Config()), {"critic_epochs": 5}, lambda part: "mlp(epochs=4)")["critic"] == "mlp(epochs=5)"
    )


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ((linear(max_kl=0.1), exponential(max_kl=0.2)), "max_kl"),
        ((trust(), linear(steps_per_update=2048)), "steps_per_update"),
        ((chain(fixed(), linear(max_kl=0.1)), margin(), linear(max_kl=0.2)), "max_kl"),
    ],
)
def test_two_rules_for_the_same_setting_are_rejected(rules, name):
    with pytest.raises(ValueError, match=f"{re.escape(rules[0].spec_string)} and .* both set {name}"):
        chain(*rules)
    both = chain(linear(max_kl=0.1), margin(kl_delta=None, steps_delta=None), linear(steps_per_update=2048))
    assert both.replaces == ("max_kl", "steps_per_update")


def test_contradictory_brax_backends_are_rejected():
    with pytest.raises(ValueError, match=f"brax:ant/spring and backend='mjx' {BOTH}"):
        jaxtrpo.make_env("brax:ant/spring", backend="mjx")
