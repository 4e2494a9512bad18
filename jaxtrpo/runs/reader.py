"""Runs as their files show them, also while they train."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxtrpo.runs.directory import CONFIG_FILE, METRICS_FILE

# What a person chooses first; a label that they tell apart needs no other.
FIRST_IN_LABELS = ("algorithm", "policy", "critic", "adapt", "max_kl", "discount")
NOT_IN_LABELS = ("seed", "versions", "machine")
ALL = "all runs"  # the label where nothing but the seed differs


class Seen(NamedTuple):
    """A run as it is now."""

    path: Path
    env: str
    settings: Mapping[str, Any]  # of config.json
    columns: Mapping[str, np.ndarray]  # of metrics.csv, float64 with NaN for blanks; none before the first update


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The directories of runs among these and in them, in order.

    Raises:
      FileNotFoundError: there is no such directory, or no run in it.
      NotADirectoryError: it is a file.
    """
    found: dict[Path, None] = {}
    for path in paths:
        place = require_directory(path)
        here = runs_in([place])
        if not here:
            raise FileNotFoundError(f"there is no {METRICS_FILE} in {place}")
        found.update(dict.fromkeys(here))
    return list(found)


def require_directory(path: Path) -> Path:
    """The directory that a person named.

    Raises:
      FileNotFoundError: there is none.
      NotADirectoryError: it is a file.
    """
    place = path.expanduser()
    if not place.exists():
        raise FileNotFoundError(f"no such directory: {place}")
    if not place.is_dir():
        raise NotADirectoryError(f"{place} is not a directory; give the one that holds {METRICS_FILE}")
    return place


def runs_in(places: Iterable[Path]) -> list[Path]:
    """The directories of runs that there are now, in order."""
    return list(dict.fromkeys(file.parent for place in places for file in sorted(place.rglob(METRICS_FILE))))


def read_run(directory: Path) -> Seen:
    """Reads what a run has shown so far; a line that is not whole yet is left out.

    Raises:
      ValueError: a file is not one that `train` wrote.
    """
    settings = _settings(directory / CONFIG_FILE)
    with (directory / METRICS_FILE).open(newline="", encoding="utf-8", errors="replace") as file:
        text = file.read()
    whole = text[: text.rfind("\n") + 1]
    names, *rows = list(csv.reader(whole.splitlines())) or [[]]
    try:
        table = [[float(cell) if cell else np.nan for cell in row] for row in rows if len(row) == len(names)]
    except ValueError as error:
        raise ValueError(f"{directory / METRICS_FILE} is no table of metrics that `train` wrote: {error}") from error
    columns = dict(zip(names, np.array(table, np.float64).reshape(len(table), len(names)).T, strict=True))
    return Seen(directory, str(settings.pop("env", directory.name)), settings, columns)


def _settings(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path} is no file of settings that `train` wrote") from error
    return content if isinstance(content, dict) else {}


def in_groups(runs: Sequence[Seen]) -> dict[str, dict[str, list[Seen]]]:
    """Environment -> settings in words -> runs that differ by nothing but their seed.

    Words name as few settings as tell the groups of an environment apart; where there is one group they are `ALL`.
    """
    by_env: dict[str, list[Seen]] = {}
    for run in runs:
        by_env.setdefault(run.env, []).append(run)
    return {env: _by_settings(of_env) for env, of_env in by_env.items()}


def _by_settings(runs: Sequence[Seen]) -> dict[str, list[Seen]]:
    names = dict.fromkeys([*FIRST_IN_LABELS, *(name for run in runs for name in run.settings)])
    told: list[str] = []
    groups = 1
    for name in names:
        if name not in NOT_IN_LABELS:
            split = len({_words(run, [*told, name]) for run in runs})
            if split > groups:
                told.append(name)
                groups = split
    found: dict[str, list[Seen]] = {}
    for run in runs:
        found.setdefault(_words(run, told) or ALL, []).append(run)
    return found


def _words(run: Seen, names: Sequence[str]) -> str:
    return ", ".join(f"{name}={run.settings.get(name)}" for name in names)
