"""Code of the README and of the documentation, run in the order in which it stands there, with short trainings."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support import shared_programs

import jaxtrpo
from jaxtrpo.cli import main as cli
from jaxtrpo.config import USUAL_STEPS, Config
from jaxtrpo.config.specs import parse, split_own
from jaxtrpo.runs.config_file import save_config

# Box2D's binding, made by SWIG, crashes where this warning is an error.
pytestmark = [
    pytest.mark.filterwarnings("ignore:builtin type .* has no __module__ attribute:DeprecationWarning"),
    pytest.mark.timeout(1200),
]
ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
TUTORIALS = [DOCS / "tutorials" / f"{name}.md" for name in ("first-run", "your-own-task", "compare-settings")]
# What a comment before a block may say, and why the block is not run.
NOT_RUN = {
    "<!-- tests -->": "it runs all tests, this one included",
    "<!-- not run: needs Slurm -->": "there is no scheduler here",
    "<!-- not run: needs an accelerator -->": "there is none here, and it takes half an hour",
    "<!-- not run: needs ale-py -->": "it is no dependency of the tests",
    "<!-- not run: needs gymnax -->": "it is no dependency of the tests",
    "<!-- not run: needs the game above -->": "it needs ale-py",
    "<!-- not run: needs minigrid -->": "it is no dependency of the tests",
    "<!-- not run: registers an environment with Brax -->": "Brax imports a package that warns of its end",
    "<!-- not run: needs SuperSuit and PettingZoo's environments -->": "they are no dependencies of the tests",
}
FILE = "<!-- file: "
BLOCK = re.compile(r"^(?P<comment><!-- [^\n]* -->)?\n```(?P<language>python|bash)\n(?P<code>.*?)^```", re.M | re.S)
SHORTER = 200  # times shorter than they stand there are trainings and the intervals between evaluations


class Block(NamedTuple):
    where: str
    language: str
    code: str
    is_run: bool
    file: str  # in which a reader saves it, as the comment before it says; "" if anywhere


def blocks_of(page: Path) -> list[Block]:
    blocks = []
    for number, found in enumerate(BLOCK.finditer(page.read_text()), 1):
        comment = found["comment"] or ""
        file = comment.removeprefix(FILE).removesuffix(" -->") if comment.startswith(FILE) else ""
        where = f"{page.relative_to(ROOT)}, block {number}"
        blocks.append(Block(where, found["language"], found["code"], comment not in NOT_RUN, file))
    return blocks


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
COMMANDS = [
    line[line.index("jaxtrpo ") :]
    for block in BLOCKS
    if block.language == "bash"
    for line in block.code.splitlines()
    if "jaxtrpo " in line
]


# ---- running


def run_page(page: Path) -> None:
    """Runs the blocks of a page in the current directory."""
    for block in blocks_of(page):
        if not block.is_run:
            continue
        try:
            if block.language == "python":
                if block.file:
                    Path(block.file).write_text(block.code)
                exec(compile(block.code, block.where, "exec"), {"__name__": "__main__"})
            else:
                for line in block.code.splitlines():
                    for command in line.split("&&"):
                        run_command(shlex.split(command, comments=True))
        except BaseException as error:
            error.add_note(block.where)
            raise


def run_command(words: list[str]) -> None:
    program, *arguments = words
    if (program, *arguments[:1]) == ("pip", "install"):
        require_extras(arguments[1:])
    elif (program, *arguments[:1]) in (("jaxtrpo", "launch"), ("jaxtrpo", "video")):
        # Video: MuJoCo chooses how to draw when it is imported.
        command = [sys.executable, "-m", "jaxtrpo", *shortened(arguments)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    else:
        assert program == "jaxtrpo", words
        assert cli.main(shortened(arguments)) == 0, words


def require_extras(targets: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for target in targets:
        (named,) = re.fullmatch(r"\.(?:\[([\w,]+)\])?", target).groups()
        assert set((named or "view").split(",")) <= set(extras), target


def shortened(arguments: list[str]) -> list[str]:
    """Shortens trainings and videos."""
    arguments = list(arguments)
    if arguments[0] == "sweep" and "--seeds" not in arguments:
        arguments += ["--seeds", str(cli.Sweep.seeds)]
    for flag in ("--total-steps", "--eval-every"):
        if flag in arguments:
            at = arguments.index(flag) + 1
            arguments[at] = str(int(arguments[at]) // SHORTER)
    for flag, most in (("--seeds", 1 if arguments[0] == "sweep" else 2), ("--trials", 1)):
        if flag in arguments:
            at = arguments.index(flag) + 1
            arguments[at] = str(min(int(arguments[at]), most))
    if "--grid" in arguments:  # each value is trained with in a process
        at = arguments.index("--grid") + 1
        arguments[at] = arguments[at].partition(",")[0]
    if arguments[0] in ("train", "sweep") and not {"--total-steps", "--config"} & set(arguments):
        arguments += ["--total-steps", str(USUAL_STEPS // SHORTER)]
    return arguments + (
        ["--width", "64", "--height", "48", "--max-episode-steps", "50"] if arguments[0] == "video" else []
    )


@pytest.fixture(scope="module")
def short():
    """Shortens trainings of scripts, compiles equal ones once, and ends servers."""
    with shared_programs(), pytest.MonkeyPatch.context() as patch:
        for name in ("train", "train_many"):
            whole = getattr(jaxtrpo, name)

            def shortly(env, *, whole=whole, total_steps=USUAL_STEPS, eval_every=0, **settings):
                cut = {"total_steps": total_steps // SHORTER, "eval_every": eval_every // SHORTER, "progress": False}
                return whole(env, **{**settings, **cut})

            patch.setattr(jaxtrpo, name, shortly)

        def interrupted(self):
            raise KeyboardInterrupt

        patch.setattr("socketserver.BaseServer.serve_forever", interrupted)
        yield


@pytest.fixture(scope="module")
def reader(short, tmp_path_factory):
    """The directory of somebody who has followed the README and the tutorials."""
    place = tmp_path_factory.mktemp("reader")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for page in (ROOT / "README.md", *TUTORIALS):
            run_page(page)
    return place


def test_readme_and_tutorials_work_in_sequence(reader):
    made = ("runs/cheetah", "runs/script", "runs/hopper/best", "runs/tank/export", "sweeps/kl", "runs/kl")
    assert not [each for each in made if not (reader / each).is_dir()]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in (ROOT / "README.md", *TUTORIALS) and blocks_of(page)], ids=str
)
def test_page_works_after_readme_and_tutorials(page, reader, tmp_path, monkeypatch):
    place = tmp_path / "place"
    if page == DOCS / "index.md":  # stands in for the README
        place.mkdir()
    else:
        shutil.copytree(reader, place)
    monkeypatch.chdir(place)
    run_page(page)


# ---- reading


def outputs(block: Block) -> Iterator[str]:
    """Yields the directories that a block begins runs or sweeps in."""
    if block.language == "python":
        yield from re.findall(r'\bout=f?"([^"]*)"', block.code)
    for line in block.code.splitlines():
        begins = re.search(r"jaxtrpo (launch|train|sweep) ", line) and "--resume" not in line
        yield from re.findall(r"--out (\S+)", line) if begins and block.language == "bash" else ()


def test_no_two_blocks_write_to_the_same_directory():
    found = [(out, block) for block in BLOCKS for out in outputs(block)]
    assert len(found) > 15
    for (out, block), (other, another) in itertools.combinations(found, 2):
        first_commands = {block.where, another.where} == {"README.md, block 1", "docs/index.md, block 1"}
        assert out != other or first_commands, (out, block.where, another.where)


def test_comments_before_blocks_are_known():
    for page in PAGES:
        for block in BLOCK.finditer(page.read_text()):
            comment = block["comment"]
            assert comment in (None, "<!-- train -->", *NOT_RUN) or comment.startswith(FILE), (page, comment)
    used = [block.where for block in BLOCKS if not block.is_run]
    assert len(used) == len(NOT_RUN)


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
        assert words is None or split_own(words) or parse(kind, words)


def test_examples_of_every_kind_of_ones_own_are_there():
    scripts = [block.code for block in BLOCKS if block.language == "python"]
    for wanted in ("surrogate=", "policy=", "algorithm=", "adapt=", "Task(", "train(make_"):
        assert any(wanted in code for code in scripts), wanted


def test_the_readme_is_read_in_five_minutes():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_links_between_pages_lead_somewhere():
    generated = {DOCS / name for name in ("components.md", "command-line.md")}  # by docs/pages.py
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            there = (page.parent / target).resolve()
            assert "://" in target or there.exists() or there in generated, (page, target)
