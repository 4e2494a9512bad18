"""The text of `jaxtrpo algorithms`, made from the signatures and docstrings of the factories."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator

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


def catalogue(name: str | None = None) -> str:
    """Describes all algorithms, rules, critics and policies with their settings, or only those of one name.

    Raises:
      ValueError: the name is unknown.
    """
    parts = []
    for kind, title in TITLES.items():
        entries = [_entry(kind, each) for each in KINDS[kind] if name in (None, each)]
        if entries:
            parts.append(f"{title}\n\n" + "\n\n".join(entries))
    if not parts:
        known = sorted({each for names in KINDS.values() for each in names})
        raise ValueError(f"unknown name {name!r}; choose from {', '.join(known)}")
    return "\n\n\n".join(parts)


def _entry(kind: str, name: str) -> str:
    make = factory(kind, name)
    text = docstring_parser.parse(inspect.getdoc(make) or "")
    lines = [f"  {name}", _wrapped(text.short_description or "", 4)]
    described = {parameter.arg_name.lstrip("*"): parameter.description or "" for parameter in text.params}
    for parameter in inspect.signature(make).parameters.values():
        given = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines += [f"      {parameter.name}{given}", _wrapped(described.get(parameter.name, ""), 10)]
    lines += _defaults(kind, name)
    return "\n".join(line for line in lines if line.strip())


def _defaults(kind: str, name: str) -> Iterator[str]:
    if kind != "algorithm":
        return
    algorithm: Algorithm = factory(kind, name)()
    starts = ", ".join(f"{setting}={value:g}" for setting, value in algorithm.hyperparameters.items())
    yield _wrapped(f"Rules can adapt {starts}. Default rule: {algorithm.adapt}; default critic: {algorithm.critic}.", 4)


def _wrapped(text: str, indent: int) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent)
