"""Parts of the user's own, named on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from jaxtrpo.cli import main as cli
from jaxtrpo.cli.own_parts import _module_in, part
from jaxtrpo.config.specs import is_built_in, split_own, with_argument
from jaxtrpo.runs.directory import CONFIG_FILE

SOURCE = """
import jax.numpy as jnp
from flax import linen as nn

import jaxtrpo
from jaxtrpo.adapt import Rule
from jaxtrpo.critics.mlp import mlp
from jaxtrpo.policies.distributions import Gaussian


class Network(nn.Module):
    width: int = 4

    @nn.compact
    def __call__(self, obs):
        return Gaussian(nn.Dense(1)(nn.tanh(nn.Dense(self.width)(obs))), jnp.zeros(1))


def halving(factor=0.5):
    def update(state, settings, metrics):
        return state, {**settings, "max_kl": factor * settings["max_kl"]}

    return Rule(init=lambda settings: (), update=update)


def algorithm(max_kl=0.01):
    return jaxtrpo.trpo(max_kl=max_kl)._replace(spec_string="mine")


def broken():
    raise RuntimeError("no luck")


critic = mlp(hidden=(3,))
wide = Network(width=7)
"""
TINY = "--steps-per-update 64 --num-envs 4 --total-steps 128 --actors 1 --quiet".split()
TRAIN = ["train", "InvertedPendulum-v5", *TINY]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current directory, which has the module `own` and the file parts/own.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("own.py").write_text(SOURCE)
    Path("parts").mkdir()
    Path("parts", "own.py").write_text(SOURCE)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("own") or name == "custom":
            del sys.modules[name]
    _module_in.cache_clear()


@pytest.mark.parametrize("place", ["own", "own.py", "parts/own.py", "parts.own"])
def test_part_is_a_value_or_made_by_a_class_or_function(here, place):
    assert part("policy", f"{place}:Network").width == 4
    assert part("policy", f"{place}:Network(width=9)").width == 9
    assert part("policy", f"{place}:wide").width == 7
    assert part("algorithm", f"{place}:algorithm(max_kl=0.02)").hyperparameters["max_kl"] == 0.02
    assert part("critic", f"{place}:critic").spec_string == "mlp(hidden=(3,))"
    assert part("adapt", f"{place}:halving").update((), {"max_kl": 2.0}, {})[1] == {"max_kl": 1.0}


def test_file_is_imported_once_and_beside_a_module_of_the_same_name(here):
    assert type(part("policy", "parts/own.py:wide")) is type(part("policy", "parts/own.py:Network"))
    assert type(part("policy", "parts/own.py:wide")) is not type(part("policy", "own:wide"))


def test_other_texts_are_spec_strings(here):
    assert part("critic", "mlp(hidden=(5,))").spec_string == "mlp(hidden=(5,))"
    for text in ("mlp", "mlp(hidden=(5,))", "a:b c", ":b", "a:", "a:b(", "a:1", "linear(over=1, x={1:2})"):
        assert split_own(text) is None
    assert split_own("a.b:c(d={1: 2})") == ("a.b", "c(d={1: 2})")
    assert with_argument("own:algorithm(max_kl=0.1)", "max_kl", 0.2) == "own:algorithm(max_kl=0.2)"


def test_words_need_no_quotes(here):
    assert part("policy", "own:Network(width=wide)").width == "wide"


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        ("policy", "nowhere:Network", "no module nowhere in this directory or among the installed packages"),
        ("policy", "own.inner:Network", "no module own.inner in this directory"),
        ("policy", "nowhere.py:Network", "no such file: nowhere.py"),
        ("policy", "own:Netwrk", "own has no Netwrk; it has Network, halving, algorithm, broken"),
        ("policy", "own:Network(3)", "Network takes its settings by name, such as Network(size=64)"),
        ("policy", "own:Network(width=print(1))", "settings of Network must be Python literals or words"),
        ("policy", "own:Network(widht=3)", "Network: got an unexpected keyword argument 'widht'"),
        ("policy", "own:wide(width=3)", "wide is not a class or function, so it takes no settings"),
        ("policy", "own:halving", "it must be or return a flax module, not a value of type jaxtrpo.adapt.rule.Rule"),
        ("algorithm", "own:halving", "it must be or return a value of type Algorithm, not jaxtrpo.adapt.rule.Rule"),
        ("adapt", "own:algorithm", "it must be or return a value of type Rule, not"),
        ("critic", "own:Network", "it must be or return a value of type CriticMaker, not own.Network"),
        ("critic", "own:broken", "RuntimeError: no luck (/"),
    ],
)
def test_wrong_part_is_refused_in_one_sentence(here, kind, text, told, capsys):
    assert cli.main([*TRAIN, f"--{kind}", text]) == cli.INPUT_ERROR
    error = capsys.readouterr().err
    assert error.startswith(f"jaxtrpo: error: {kind}={text!r}: {told}") and error.count("\n") == 1


def test_missing_import_of_a_module_is_reported_with_its_place(here, capsys):
    Path("needy.py").write_text("import nothing_of_this_name\n")
    assert cli.main([*TRAIN, "--policy", "needy:Network"]) == cli.INPUT_ERROR
    error = capsys.readouterr().err
    assert "ModuleNotFoundError: No module named 'nothing_of_this_name'" in error and "needy.py:1" in error


def test_run_of_own_parts_is_trained_repeated_evaluated_and_resumed(here, capsys):
    own = ["--policy", "own:Network(width=5)", "--adapt", "own:halving(factor=0.25)", "--algorithm", "own:algorithm"]
    assert cli.main([*TRAIN, *own, "--critic", "own:critic", "--out", "run"]) == 0
    config = json.loads(Path("run", CONFIG_FILE).read_text())
    parts = {"algorithm": "mine", "policy": "custom:Network", "adapt": "custom", "critic": "mlp(hidden=(3,))"}
    assert {kind: config[kind] for kind in parts} == parts
    longer = [word.replace("128", "192") for word in TRAIN]
    assert cli.main([*longer, *own, "--critic", "own:critic", "--out", "run", "--resume"]) == 0
    capsys.readouterr()

    assert cli.main(["train", "--config", "run", "--out", "again"]) == cli.INPUT_ERROR
    message = "its algorithm is your own, 'mine', which the file does not contain; add --algorithm MODULE:NAME"
    assert message in capsys.readouterr().err
    assert cli.main(["train", "--config", "run", *own, "--quiet", "--out", "again"]) == 0
    capsys.readouterr()

    assert cli.main(["evaluate", "run", "--episodes", "1"]) == cli.INPUT_ERROR
    assert "is your own, Network: pass load_policy(..., policy=Network()), or type --policy" in capsys.readouterr().err
    assert cli.main(["evaluate", "run", "--episodes", "1", "--policy", "own:Network"]) == cli.INPUT_ERROR
    assert "run/policy.msgpack fits another policy: its parameters are not those" in capsys.readouterr().err
    assert cli.main(["evaluate", "run", "--episodes", "1", "--policy", "own:Network(width=5)"]) == 0


@pytest.mark.parametrize("kind", ["policy", "algorithm", "critic", "adapt"])
@pytest.mark.parametrize("text", ["custom:Evil", "custom.py:Evil()"])
def test_files_never_choose_a_module(here, kind, text, capsys):
    Path("custom.py").write_text("raise SystemExit('imported')")
    Path("run").mkdir()
    Path("run", CONFIG_FILE).write_text(json.dumps({"env": "InvertedPendulum-v5", kind: text}))
    assert cli.main(["train", "--config", "run"]) == cli.INPUT_ERROR
    assert f"its {kind} is your own, '{text}'" in capsys.readouterr().err and "custom" not in sys.modules


def test_built_in_spec_strings_are_known_without_importing():
    for kind, text in (
        ("adapt", "chain(margin(kl_delta=None), fixed)"),
        ("algorithm", " ppo(clip=0.1)"),
        ("policy", "mlp"),
    ):
        assert is_built_in(kind, text)
    for kind, text in (
        ("adapt", "chain(custom, fixed)"),
        ("algorithm", "mine"),
        ("policy", "custom:mlp"),
        ("adapt", ""),
    ):
        assert not is_built_in(kind, text)
