"""Recipes: that each is valid, stands for what it says, and says what was measured."""

from __future__ import annotations

import dataclasses
import json
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest

import jaxtrpo
from jaxtrpo.cli import main as cli
from jaxtrpo.config import Config
from jaxtrpo.config.specs import KINDS, parse
from jaxtrpo.envs.registry import require_known
from jaxtrpo.runs.recipes import mention, parse_recipes, recipes

ROOT = Path(__file__).parent.parent.parent
CAR = "MountainCarContinuous-v0"
ENTRY = {"total_steps": "1000", "seeds": "[5, 6]", "returns": "[1, 2.5]"}


def entry(**changes: str | None) -> str:
    """TOML of one recipe; None leaves an entry out."""
    lines = [f"{name} = {value}" for name, value in {**ENTRY, **changes}.items() if value is not None]
    return "\n".join(['["Some-v1"]', *lines])


# ---- the files


@pytest.mark.parametrize("env", recipes())
def test_every_part_of_a_recipe_can_be_made(env):
    settings = jaxtrpo.load_recipe(env)
    assert settings.pop("env") == env
    config = Config(**settings)
    for kind in KINDS:
        if getattr(config, kind) is not None:
            parse(kind, getattr(config, kind))


@pytest.mark.parametrize("env", [env for env in recipes() if ":" not in env])
def test_environment_of_a_recipe_exists(env):
    require_known(env)


def test_recipes_were_judged_on_seeds_that_they_were_not_tuned_on():
    assert all(set(recipe.seeds) <= set(range(10)) for recipe in recipes().values())  # tuned on 100 and up


def test_returns_are_those_of_the_table_of_results():
    lines = (ROOT / "experiments" / "results" / "recipes" / "runs.jsonl").read_text().splitlines()
    measured = {(line["task"], line["seed"]): line["mean"] for line in map(json.loads, lines)}
    for env, recipe in recipes().items():
        for seed, value in zip(recipe.seeds, recipe.returns, strict=True):
            assert value == pytest.approx(measured[env, seed], rel=1e-3, abs=0.05), (env, seed)


def test_files_are_found_in_an_installed_package():
    assert sorted(recipes()) == sorted(
        env for file in (ROOT / "jaxtrpo" / "recipes").iterdir() for env in tomllib.loads(file.read_text())
    )


# ---- parsing


def test_recipe_is_read_as_written():
    (recipe,) = parse_recipes(entry(algorithm='"ppo(clip=0.1)"', discount="0.9"), "some.toml")
    assert recipe == ("Some-v1", {"total_steps": 1000, "algorithm": "ppo(clip=0.1)", "discount": 0.9}, (5, 6), (1, 2.5))
    assert recipe.mean == 1.75


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "some.toml: "),
        ("Some-v1 = 3", "must be a table"),
        (entry(seeds=None), "lacks seeds"),
        (entry(returns=None), "lacks returns"),
        (entry(total_steps=None), "lacks total_steps"),
        (entry(gamma="0.9"), "Some-v1: unknown setting 'gamma'"),
        (entry(discount="2"), "Some-v1: discount=2"),
        (entry(policy='"mine:Network"'), "policy='mine:Network' is not built in"),
        (entry(returns="[1]"), "one return for each"),
        (entry(seeds="[5, 5]"), "different seeds"),
        (entry(seeds="[]", returns="[]"), "different seeds"),
        (entry(seeds="5", returns="[1]"), "seeds=5 must be a list"),
        (entry(seeds="[[5]]", returns="[1]"), "seeds=[5] must be"),
        (entry(seeds='["x"]', returns="[1]"), "seeds='x' must be"),
        (entry(seeds="[5]", returns="1"), "returns=1 must be a list"),
        (entry(seeds="[5]", returns='["a"]'), "returns='a' must be a number"),
        (entry(seeds="[5]", returns="[nan]"), "returns=nan must be a number"),
        (entry(algorithm='"trpo(max_kl=0.2)"', max_kl="0.1"), "max_kl"),
    ],
)
def test_malformed_recipe_is_named(text, message):
    with pytest.raises(ValueError, match="some.toml") as caught:
        parse_recipes(text, "some.toml")
    assert message in str(caught.value)


def test_unknown_environment_has_no_recipe():
    with pytest.raises(ValueError, match="none for 'CartPole-v7'; the nearest are for CartPole-v1"):
        jaxtrpo.load_recipe("CartPole-v7")


@pytest.mark.parametrize("env", [None, ["x"], len])
def test_recipe_is_for_a_name(env):
    with pytest.raises(ValueError, match=r"recipe: env=.* must be a name"):
        jaxtrpo.load_recipe(env)


def test_loaded_recipe_may_be_changed():
    jaxtrpo.load_recipe(CAR)["discount"] = 0.1
    assert jaxtrpo.load_recipe(CAR)["discount"] != 0.1


# ---- the command


def test_flag_stands_for_the_settings_of_the_recipe():
    settings = {**jaxtrpo.load_recipe(CAR)}
    command = cli.parse(["train", CAR, "--recipe", "--seed", "3"])
    assert (command.env, command.config) == (settings.pop("env"), Config(**settings, seed=3))


@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        (["--total-steps", "5000"], {"total_steps": 5000}),
        (["--discount", "0.5"], {"discount": 0.5}),
        (["--policy", "mlp(hidden=(7,))"], {"policy": "mlp(hidden=(7,))"}),
    ],
)
def test_other_flags_override_a_recipe(flags, changes):
    settings = jaxtrpo.load_recipe(CAR)
    del settings["env"]
    assert cli.parse(["train", CAR, "--recipe", *flags]).config == Config(**{**settings, **changes})


@pytest.mark.parametrize("env", recipes())
def test_listed_command_trains_by_the_recipe(env, capsys):
    assert cli.main(["recipes", env]) == 0
    words = capsys.readouterr().out.splitlines()[0]
    listed = cli.parse(shlex.split(words)[1:])
    assert listed == dataclasses.replace(cli.parse(["train", env, "--recipe"]), recipe=False)


def test_list_names_every_recipe_and_its_mean_return(capsys):
    assert cli.main(["recipes"]) == 0
    shown = capsys.readouterr().out
    for env, recipe in recipes().items():
        (line,) = [line for line in shown.splitlines() if line.split()[0] == env]
        assert f"{recipe.settings['total_steps']:,}" in line
        mean, _, spread = line.split()[-3:]
        assert mean == f"{recipe.mean:.4g}" and spread.replace(".", "").isdigit()
        assert float(spread) == pytest.approx(np.std(recipe.returns, ddof=1), rel=0.05)


# ---- who is told


def test_run_with_default_settings_is_told_of_a_recipe():
    note = mention(CAR, vars(Config()))
    assert note is not None and "--recipe" in note and f"{recipes()[CAR].mean:.4g}" in note


@pytest.mark.parametrize("env", ["Swimmer-v77", lambda: None])
def test_run_without_a_recipe_is_told_nothing(env):
    assert mention(env, vars(Config())) is None


def test_run_that_uses_a_setting_of_the_recipe_is_told_nothing():
    name = next(name for name in recipes()[CAR].settings if name != "total_steps")
    assert mention(CAR, {**vars(Config()), name: recipes()[CAR].settings[name]}) is None
    assert mention(CAR, {**vars(Config()), "total_steps": 5}) is not None


def test_training_says_that_there_is_a_recipe(capfd):
    arguments = {"total_steps": 256, "actors": 1, "algorithm": "trpo", "seed": 0}
    jaxtrpo.train(CAR, **arguments)
    assert "tuned settings" in capfd.readouterr().err
    jaxtrpo.train(CAR, **arguments, discount=0.9)
    assert "tuned settings" not in capfd.readouterr().err
