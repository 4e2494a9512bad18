"""Code of the README and of the documentation, run as it stands there: training is cut short, words are read."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import jaxtrpo
from jaxtrpo.cli import main as cli
from jaxtrpo.config import Config
from jaxtrpo.config.specs import parse
from jaxtrpo.runs.config_file import save_config

# Box2D's binding, made by SWIG, crashes where this warning is an error.
pytestmark = pytest.mark.filterwarnings("ignore:builtin type .* has no __module__ attribute:DeprecationWarning")
ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    (f"{page.relative_to(ROOT)}, block {number}", language, code)
    for page in PAGES
    for number, (language, code) in enumerate(
        re.findall(r"^```(python|bash)\n(.*?)^```", page.read_text(), re.M | re.S)
    )
]
PYTHON = {where: code for where, language, code in BLOCKS if language == "python"}
COMMANDS = [
    line[line.index("jaxtrpo ") :]
    for _, language, code in BLOCKS
    if language == "bash"
    for line in code.splitlines()
    if "jaxtrpo " in line
]


@pytest.mark.parametrize("where", PYTHON)
def test_python_runs_as_it_stands(where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained = jaxtrpo.train

    def train(*arguments, **settings):
        cut = {"total_steps": 1}
        if "eval_every" in settings:  # a state is only kept after an evaluation
            cut = {"total_steps": 2_048, "eval_every": 1_024, "eval_episodes": 1}
        return trained(*arguments, **{**settings, **cut, "progress": False})

    many = jaxtrpo.train_many
    monkeypatch.setattr(jaxtrpo, "train", train)
    monkeypatch.setattr(jaxtrpo, "train_many", lambda *words, **more: many(*words, **{**more, "total_steps": 1}))
    exec(compile(PYTHON[where], where, "exec"), {"__name__": "page"})


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs/cheetah").mkdir(parents=True)  # which a command before has made
    save_config(Path("runs/cheetah"), "HalfCheetah-v5", Config())
    understood = cli.parse(shlex.split(command, comments=True)[1:])
    if not isinstance(understood, cli.Train):
        return
    for kind in ("algorithm", "policy", "critic", "adapt"):
        words = getattr(understood.config, kind)
        assert words is None or parse(kind, words)


def test_examples_of_every_kind_of_ones_own_are_there():
    for wanted in ("surrogate=", "policy=", "algorithm=", "adapt=", "Task(", "train(make_"):
        assert any(wanted in code for code in PYTHON.values()), wanted


def test_the_readme_is_read_in_five_minutes():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), (page, target)
