"""The documentation as a site: it is built without a warning, and its generated pages have all that the code has."""

from __future__ import annotations

import dataclasses
import html
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import jaxtrpo
from jaxtrpo.cli import main as cli
from jaxtrpo.config import Config
from jaxtrpo.config.specs import KINDS, factory

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
pytestmark = pytest.mark.skipif(not (ROOT / "mkdocs.yml").exists(), reason="a clone of the repository is needed")
PUBLIC = re.findall(r"^::: (\S+)", (DOCS / "reference.md").read_text(), re.M) if DOCS.exists() else []
COMMANDS = {kind.__name__.lower(): kind for kind in cli._COMMANDS if kind is not Config}


FLAGS = re.findall("mkdocs build (.*) --site-dir", (ROOT / ".ci" / "run").read_text()) if DOCS.exists() else []


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Builds a site with the flags of CI."""
    (flags,) = FLAGS
    command = [sys.executable, "-m", "mkdocs", "build", *flags.split(), "--config-file", config, "--site-dir", site]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages of the site, as text without tags."""
    place = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", place)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    pages = {str(page.parent.relative_to(place)): page.read_text() for page in place.rglob("index.html")}
    return {name: " ".join(html.unescape(re.sub("<[^>]+>", " ", page)).split()) for name, page in pages.items()}


def test_site_is_built_without_a_warning(site):
    assert {"how-to/network", "reference", "components", "command-line"} <= set(site)


@pytest.mark.parametrize("text", ["[to nowhere](nowhere.md)", "[to nothing](#nothing)", "::: jaxtrpo.nothing"])
def test_a_warning_fails_the_build(tmp_path, text):
    (tmp_path / "docs").mkdir()
    shutil.copy(DOCS / "field_comments.py", tmp_path / "docs")
    (tmp_path / "docs" / "index.md").write_text(f"# Page\n\n{text}\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\nhooks: []\nnav: [index.md]\n")
    done = build(config, tmp_path / "site")
    assert done.returncode != 0 and re.search("nowhere|nothing", done.stderr), done.stderr


def test_page_of_components_has_every_setting_with_its_default(site):
    for kind, names in KINDS.items():
        for name in names:
            for each in inspect.signature(factory(kind, name)).parameters.values():
                given = "" if each.default is each.empty else f" {each.default!r}"
                assert f" {each.name}{given} " in site["components"], (kind, name, each)


def test_page_of_the_command_line_has_every_flag(site):
    for command, kind in COMMANDS.items():
        section = site["command-line"].partition(f" jaxtrpo {command} ")[2]
        assert section, command
        for field in dataclasses.fields(kind):
            if "Positional" not in str(field.type) and field.name != "config":
                flag = "config" if field.name == "like" else field.name.replace("_", "-")
                assert f" --{flag} " in section, (command, flag)
    for field in dataclasses.fields(Config):
        assert site["command-line"].count(f" --{field.name.replace('_', '-')}") >= 2, field.name  # train and sweep


def test_reference_has_every_public_name():
    listed = {name.rpartition(".")[2] for name in PUBLIC}
    assert set(jaxtrpo.__all__) - {"__version__"} <= listed


def test_every_public_field_is_described(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    import griffe
    from field_comments import FieldComments

    package = griffe.load("jaxtrpo", search_paths=[ROOT], extensions=griffe.load_extensions(FieldComments()))

    def fields(place):
        for each in place.members.values():
            if each.is_alias or each.name.startswith("_"):
                continue
            if each.is_class:
                yield from fields(each)
            elif each.is_attribute and place.is_class and each.annotation is not None:
                yield each

    found = [each for name in PUBLIC for each in fields(package[name.partition(".")[2]])]
    assert len(found) > 50 and not [each.path for each in found if not each.docstring]
    described = {each.path: each.docstring.value for each in found}
    assert described["jaxtrpo.training.record.Result.policy"] == "callable on observations"  # on the line
    assert described["jaxtrpo.training.record.Result.metrics"].startswith("Columns of metrics.csv; blanks are")  # above
