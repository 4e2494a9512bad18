"""A setting has one value: two that contradict each other are refused, and what nobody gave is not one of them."""

from __future__ import annotations

import re

import pytest

import jaxtrpo
from jaxtrpo.adapt import chain, exponential, fixed, linear, margin, trust
from jaxtrpo.algorithms.trpo import trpo
from jaxtrpo.cli import main as cli
from jaxtrpo.config import Config
from jaxtrpo.config.specs import parse, said
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
def test_two_values_of_one_setting_are_refused(settings, first, second):
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
        ({"adapt": "linear(max_kl=0.001)", "max_kl": 0.05}, 0.05, 1024),  # where it goes, and where it begins
    ],
)
def test_a_value_that_is_given_once_counts(settings, max_kl, largest):
    run = prepare(PENDULUM, **settings)
    run.close()
    assert (run.config.max_kl, run.config.max_steps_per_update) == (max_kl, largest)
    assert float(run.update.hyperparameters()["max_kl"]) == pytest.approx(max_kl)


def test_what_words_say_is_what_they_give_a_value():
    assert (
        said("algorithm", "trpo") == said("algorithm", "mine(max_kl=1)") == said("algorithm", "no words at all") == []
    )
    assert said("algorithm", "ppo(clip=0.1, kl_stop=None)") == [("clip", 0.1), ("kl_stop", None)]
    assert said("adapt", "chain(fixed, trust(gain=0.1), linear(over=5, max_kl=0))") == [("gain", 0.1), ("over", 5)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--algorithm", "trpo(max_kl=0.05)", "--max-kl", "0.01"], "algorithm='trpo(max_kl=0.05)' and max_kl=0.01"),
        (["--max-kl", "0.05", "--max_kl=0.01"], "--max-kl 0.05 and --max_kl=0.01"),
        (["--normalize-observations", "--no-normalize-observations"], "--normalize-observations and --no-normalize-"),
    ],
)
def test_the_shell_refuses_two_values(words, told, capsys):
    assert cli.main(["train", PENDULUM, *words]) == cli.INPUT_ERROR
    said_of_it = capsys.readouterr().err
    assert told in said_of_it and BOTH in said_of_it


@pytest.mark.parametrize(
    "words",
    [
        ["train", PENDULUM, "--max-kl", "0.05", "--max-kl=0.05"],
        ["train", PENDULUM, "--quiet", "--max-kl", "0.05", "--quiet"],
        ["sweep", PENDULUM, "--max-kl", "0.05", "--grid", "discount=0.9,1", "--grid", "max_kl=0.01"],  # refused later
    ],
)
def test_the_same_value_twice_is_one(words):
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
def test_what_is_typed_changes_a_run_that_is_repeated(run, typed, algorithm, max_kl, tmp_path):
    save_config(tmp_path, PENDULUM, run)
    found = cli.parse(["train", "--config", str(tmp_path), *typed]).config  # pyright: ignore
    assert (found.algorithm, found.max_kl) == (algorithm, max_kl)
    parse("algorithm", found.algorithm)


def test_two_that_are_typed_are_refused_where_a_run_is_repeated(tmp_path, capsys):
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
def test_a_sweep_does_not_try_what_is_given(given, tried):
    with pytest.raises(ValueError, match="contradict each other"):
        with_settings({**vars(Config()), **given}, tried, lambda part: "mlp")


def test_a_sweep_changes_settings_of_the_part_that_it_has_chosen():
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
def test_two_rules_that_set_the_same_are_refused(rules, name):
    with pytest.raises(ValueError, match=f"{re.escape(rules[0].words)} and .* both set {name}"):
        chain(*rules)
    assert chain(linear(max_kl=0.1), margin(), linear(steps_per_update=2048)).replaces == ("max_kl", "steps_per_update")


def test_two_kinds_of_physics_are_refused():
    with pytest.raises(ValueError, match=f"brax:ant/spring and backend='mjx' {BOTH}"):
        jaxtrpo.make_env("brax:ant/spring", backend="mjx")
