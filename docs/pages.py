"""Hook of MkDocs: writes the pages about components and the command line, from the code, whenever the site is built."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from unittest import mock

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from jaxtrpo.cli.catalogue import TITLES, Entry, entries
from jaxtrpo.cli.main import parse

COMPONENTS, COMMAND_LINE = "components.md", "command-line.md"
BOX = "│╭╮╰╯─"  # frames of the help text


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages to those that are written by hand."""
    for path, content in ((COMPONENTS, components()), (COMMAND_LINE, command_line())):
        files.append(File.generated(config, path, content=content))
    return files


def components() -> str:
    """Returns the page about algorithms, rules, critics and policies, as `jaxtrpo algorithms` shows them."""
    parts = [
        "# Algorithms and their settings",
        'All of these are spec strings on the command line, such as `--algorithm "ppo(clip=0.1)"`, and calls in Python '
        "such as `algorithm=jaxtrpo.ppo(clip=0.1)`. `jaxtrpo algorithms` prints the same text. Settings of "
        f"a whole run are [flags]({COMMAND_LINE}#jaxtrpo-train) of `jaxtrpo train` and "
        "[arguments](reference.md#training) of `train`.",
    ]
    for kind, title in TITLES.items():
        parts += [f"## {title}", *(_component(kind, entry) for entry in entries(kind))]
    return "\n\n".join(parts) + "\n"


def _component(kind: str, entry: Entry) -> str:
    """Returns the section of one factory. Its anchor names the kind, since a critic and a policy may share a name."""
    parts = [f"### `{entry.name}` {{ #{kind}-{entry.name} }}", entry.summary]
    if entry.settings:
        rows = [(f"`{name}`", f"`{default}`" if default else "", text) for name, default, text in entry.settings]
        parts.append(_table(("setting", "default", "meaning"), rows))
    return "\n\n".join([*parts, *([entry.defaults] if entry.defaults else [])])


def command_line() -> str:
    """Returns the page about the commands and their flags, from their help texts."""
    whole = _help()
    (names,) = re.findall(r"\{([\w,]+)\}", whole.splitlines()[0])
    parts = [
        "# Command line",
        "`jaxtrpo COMMAND --help` prints the same text. Exit codes are 0 for success, 1 for a "
        "failure, 2 for invalid input, 130 for an interruption and 143 after SIGTERM.",
    ]
    for name in names.split(","):
        usage, _, rest = _help(name).partition("\n\n")
        summary, _, options = rest.partition("\n\n")
        rows = [(f"`{flag}`", text, default) for flag, text, default in _options(options)]
        heading = f"## `jaxtrpo {name}` {{ #jaxtrpo-{name} }}"
        usage = f"```text\n{' '.join(usage.removeprefix('usage: ').split())}\n```"
        parts += [heading, summary, usage, _table(("flag", "meaning", "default"), rows)]
    return "\n\n".join(parts) + "\n"


def _help(*command: str) -> str:
    """Returns a help text, wide enough for every sentence to be one line."""
    text = io.TextIOWrapper(io.BytesIO(), "utf-8")  # whose encoding has the characters of frames
    with mock.patch.dict(os.environ, COLUMNS="2000"), contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        parse([*command, "--help"])
    text.seek(0)
    return text.read()


def _options(boxes: str) -> Iterator[tuple[str, str, str]]:
    """Yields flags with their descriptions and defaults from the boxes of a help text."""
    lines = [line.strip(BOX).removeprefix(" ").rstrip() for line in boxes.splitlines() if line.startswith("│")]
    found: list[list[str]] = []
    for line in lines:
        if not line.startswith(" "):
            flag, _, text = line.partition("  ")
            found.append([flag, text.strip()])
        else:
            found[-1][1] += f" {line.strip()}"
    for flag, text in found:
        if flag == "-h, --help":
            continue
        text, default = re.fullmatch(r"(.*?)(?: \((?:default: )?([^()]*|.*\))\))?", text.strip()).groups()  # type: ignore
        default = {"None": "", "False": "", "": "", "required": "required"}.get(default or "", f"`{default}`")
        yield flag.replace("{None}|", ""), text, default


def _table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join(map(line, (titles, tuple("---" for _ in titles), *rows)))
