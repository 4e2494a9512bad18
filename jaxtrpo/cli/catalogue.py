"""All algorithms, rules, critics and policies, described by the signatures and docstrings of their factories."""

from __future__ import annotations

import inspect
import textwrap
from typing import NamedTuple

import docstring_parser

from jaxtrpo.algorithms.algorithm import Algorithm
from jaxtrpo.config.specs import KINDS, factory

TITLES = {
    "algorithm": "Algorithms (--algorithm)",
    "adapt": "Rules that adapt settings during training (--adapt)",
    "critic": "Critics (--critic)",
    "policy": "Policies (--policy)",
}
WIDTH = 110


class Entry(NamedTuple):
    """What the signature and the docstring of a factory say."""

    name: str
    summary: str
    settings: list[tuple[str, str, str]]  # name, default ("" if there is none) and description
    defaults: str  # adaptable settings, rule and critic of an algorithm; "" for other kinds


def entries(kind: str) -> list[Entry]:
    """Describes all factories of a kind: "algorithm", "adapt", "critic" or "policy"."""
    return [_entry(kind, name) for name in KINDS[kind]]


def catalogue(name: str | None = None) -> str:
    """Returns the text of `jaxtrpo algorithms`: all entries, or only those of one name.

    Raises:
      ValueError: the name is unknown.
    """
    parts = []
    for kind, title in TITLES.items():
        found = [_text(_entry(kind, each)) for each in KINDS[kind] if name in (None, each)]
        if found:
            parts.append(f"{title}\n\n" + "\n\n".join(found))
    if not parts:
        known = sorted({each for names in KINDS.values() for each in names})
        raise ValueError(f"unknown name {name!r}; choose from {', '.join(known)}")
    return "\n\n\n".join(parts)


def _entry(kind: str, name: str) -> Entry:
    make = factory(kind, name)
    text = docstring_parser.parse(inspect.getdoc(make) or "")
    described = {parameter.arg_name.lstrip("*"): parameter.description or "" for parameter in text.params}
    settings = [
        (each.name, "" if each.default is each.empty else repr(each.default), described.get(each.name, ""))
        for each in inspect.signature(make).parameters.values()
    ]
    return Entry(name, text.short_description or "", settings, _defaults(kind, name))


def _defaults(kind: str, name: str) -> str:
    if kind != "algorithm":
        return ""
    algorithm: Algorithm = factory(kind, name)()
    starts = ", ".join(f"{setting}={value:g}" for setting, value in algorithm.hyperparameters.items())
    adaptable = f"Adaptable settings with their initial values: {starts}."
    return f"{adaptable} Default rule: {algorithm.adapt}; default critic: {algorithm.critic}."


def _text(entry: Entry) -> str:
    lines = [f"  {entry.name}", _wrapped(entry.summary, 4)]
    for name, default, description in entry.settings:
        lines += [f"      {name}{f' = {default}' if default else ''}", _wrapped(description, 10)]
    lines.append(_wrapped(entry.defaults, 4))
    return "\n".join(line for line in lines if line.strip())


def _wrapped(text: str, indent: int) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent)
