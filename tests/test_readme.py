"""The README's code, run as it stands there: training is cut short, and words of the shell are read."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import jaxtrpo
from jaxtrpo import cli
from jaxtrpo.config import Config
from jaxtrpo.runs.config_file import save_config
from jaxtrpo.words import parse

# Box2D's binding, made by SWIG, crashes where this warning is an error.
pytestmark = pytest.mark.filterwarnings("ignore:builtin type .* has no __module__ attribute:DeprecationWarning")
README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"^```(python|bash)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
COMMANDS = [
    line[line.index("jaxtrpo train") :]
    for language, code in BLOCKS
    if language == "bash"
    for line in code.splitlines()
    if "jaxtrpo train" in line
]


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python_runs_as_it_stands(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained = jaxtrpo.train

    def train(*arguments, **settings):
        return trained(*arguments, **{**settings, "total_steps": 1, "progress": False})

    monkeypatch.setattr(jaxtrpo, "train", train)
    exec(compile(PYTHON[number], f"README, block {number}", "exec"), {"__name__": "README", "jaxtrpo": jaxtrpo})


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs/cheetah").mkdir(parents=True)  # which a command before has made
    save_config(Path("runs/cheetah"), "HalfCheetah-v5", Config())
    understood = cli.parse(shlex.split(command, comments=True)[1:])
    assert isinstance(understood, cli.Train)
    for kind in ("algorithm", "policy", "critic", "adapt"):
        words = getattr(understood.config, kind)
        assert words is None or parse(kind, words)


def test_examples_of_every_kind_of_ones_own_are_there():
    for wanted in ("surrogate=", "policy=", "algorithm=", "adapt=", "Task(", "train(make_"):
        assert any(wanted in code for code in PYTHON), wanted
