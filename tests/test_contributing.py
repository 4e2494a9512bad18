"""CONTRIBUTING.md and the files around it: the worked example works, versions agree, hooks run what CI runs."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import jaxtrpo

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
EXAMPLE = TEXT.partition("## Worked example")[2].partition("\n## ")[0]
NAME = "sign_gradient"
in_a_clone = pytest.mark.skipif(not (ROOT / ".ci").exists(), reason="a clone of the repository is needed")


@pytest.fixture
def copy(tmp_path):
    """The package with the worked example in it, as the text says."""
    shutil.copytree(ROOT / "jaxtrpo", tmp_path / "jaxtrpo", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests" / "algorithms").mkdir(parents=True)
    for file in ("pyproject.toml", "tests/conftest.py", "tests/slow.txt"):
        shutil.copy(ROOT / file, tmp_path / file)
    written = re.findall(r"^\d\. [^\n]*`([\w/]+\.py)`:\n\n```python\n(.*?)^```", EXAMPLE, re.M | re.S)
    assert [file for file, _ in written] == [f"jaxtrpo/algorithms/{NAME}.py", f"tests/algorithms/test_{NAME}.py"]
    for file, code in written:
        (tmp_path / file).write_text(code)
    registered = re.findall(r"^ +- ((?:`\w+`(?: and )?)+) in `([\w/]+\.py)`", EXAMPLE, re.M)
    assert len(registered) == 3
    for tables, file in registered:
        source = (tmp_path / file).read_text()
        for table in re.findall(r"\w{4,}", tables):
            source, count = re.subn(rf"^({table}\b.*= *[(\[])", rf'\1"{NAME}", ', source, flags=re.M)
            assert count == 1, (table, file)
        (tmp_path / file).write_text(source)
    return tmp_path


def test_worked_example_passes_its_own_test(copy):
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    test = [sys.executable, "-m", "pytest", "-q", "-n0", f"tests/algorithms/test_{NAME}.py"]
    done = subprocess.run(test, cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_worked_example_has_our_style(copy):
    files = [f"jaxtrpo/algorithms/{NAME}.py", f"tests/algorithms/test_{NAME}.py"]
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *files], cwd=copy, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


@in_a_clone
@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_files_that_are_named_exist(page):
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    paths = re.findall(r"`((?:jaxtrpo|tests|docs|\.ci)/[\w/.]*)`", text)
    made = {f"jaxtrpo/algorithms/{NAME}.py", f"tests/algorithms/test_{NAME}.py"}
    assert not [
        each for each in (*links, *paths) if "://" not in each and each not in made and not (ROOT / each).exists()
    ]


def test_versions_agree_and_no_release_is_in_the_future():
    entries = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert entries[0][0] == jaxtrpo.__version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == jaxtrpo.__version__
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    assert entries[0][1] == "not yet released" or entries[0][1] <= today
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) and date <= today for _, date in entries[1:])


@in_a_clone
def test_hooks_run_the_style_checks_of_ci():
    steps = (ROOT / ".ci" / "run").read_text()
    style = steps[steps.index('step "ruff"') : steps.index('step "documentation')]
    ran = [line.partition(" --pythonpath")[0] for line in style.splitlines() if line and not line.startswith("step")]
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [hook["entry"] for repo in config["repos"] for hook in repo["hooks"]] == ran
