"""Reading the files of runs, including runs that are still training."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxtrpo.config.checks import expanded, is_number
from jaxtrpo.runs.config_file import MADE_WITH
from jaxtrpo.runs.directory import CONFIG_FILE, METRICS_FILE, read_text

# Settings tried first, in this order, to tell groups apart.
FIRST_IN_LABELS = ("algorithm", "policy", "critic", "adapt", "max_kl", "discount")
NOT_IN_LABELS = ("seed", *MADE_WITH)
COUNTS = ("update", "env_steps", "wall_seconds")  # columns of every run
ALL = "all runs"  # label of runs that differ only by their seed


class LoggedRun(NamedTuple):
    """The settings and metrics of a run, as its files have them now."""

    path: Path
    env: str
    settings: Mapping[str, Any]  # of config.json
    columns: Mapping[str, np.ndarray]  # of metrics.csv, float64 with NaN for blanks; none before the first update

    @property
    def done(self) -> float | None:
        """How much of the run is done, between 0 and 1, by its steps or its time; None if it is not known."""
        ends = (
            ("env_steps", self.settings.get("total_steps")),
            ("wall_seconds", self.settings.get("stop_after_seconds")),
        )
        shares = [self.columns[name][-1] / end for name, end in ends if end and len(self.columns.get(name, ()))]
        return min(1.0, float(max(shares))) if shares else None


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Returns the directories of runs among the given directories and below them, in order.

    Raises:
      FileNotFoundError: a directory does not exist or contains no run.
      NotADirectoryError: a path is a file.
    """
    places = [require_directory(path) for path in paths]
    for place in places:
        if not runs_in([place]):
            raise FileNotFoundError(f"no {METRICS_FILE} in {place}")
    return runs_in(places)


def require_directory(path: Path) -> Path:
    """Returns the path of an existing directory, with `~` expanded.

    Raises:
      FileNotFoundError: the path does not exist.
      NotADirectoryError: the path is a file.
    """
    place = expanded(path)
    if not place.exists():
        raise FileNotFoundError(f"no such directory: {place}")
    if not place.is_dir():
        raise NotADirectoryError(f"{place} is not a directory; give the one that holds {METRICS_FILE}")
    return place


def runs_in(places: Iterable[Path]) -> list[Path]:
    """Returns the directories of runs that exist now below the given directories, in order."""
    files = (file for place in places for file in sorted(place.rglob(METRICS_FILE)))
    found: dict[Path, Path] = {}  # a directory may be given twice, under two paths
    for file in files:
        found.setdefault(file.parent.resolve(), file.parent)
    return list(found.values())


def read_run(directory: Path) -> LoggedRun:
    """Reads the settings and the metrics so far of a run; an incomplete last line is ignored.

    Raises:
      ValueError: a file was not written by `train`.
    """
    settings = _settings(directory / CONFIG_FILE)
    path = directory / METRICS_FILE
    text = read_text(path, errors="replace")
    whole = text[: text.rfind("\n") + 1]
    try:
        names, *rows = list(csv.reader(whole.splitlines())) or [[]]
        if names and (len(set(names)) < len(names) or not set(COUNTS) <= set(names)):
            raise ValueError(f"its columns must include {', '.join(COUNTS)}, and be different")
        table = [[float(cell) if cell else np.nan for cell in row] for row in rows if len(row) == len(names)]
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} is not a metrics.csv written by `train`: {error}") from error
    columns = dict(zip(names, np.array(table, np.float64).reshape(len(table), len(names)).T, strict=True))
    return LoggedRun(directory, str(settings.pop("env", directory.name)), settings, columns)


def _settings(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(path))
        if not isinstance(content, dict) or not is_number(content.get("total_steps", 1)):
            raise ValueError("it has no settings")
        seconds = content.get("stop_after_seconds")
        if seconds is not None and not is_number(seconds):
            raise ValueError("its time is no number")
        if not all(isinstance(content.get(name, {}), dict) for name in MADE_WITH):
            raise ValueError("it does not say what the run was made with")
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a config.json written by `train`") from error
    return content


def in_groups(runs: Sequence[LoggedRun]) -> dict[str, dict[str, list[LoggedRun]]]:
    """Groups runs: environment -> label -> runs that differ only by their seed.

    Labels name as few settings as are needed to tell the groups of each environment apart, the same ones in all
    environments; if no environment has several groups, the label is `ALL`.
    """
    by_env: dict[str, list[LoggedRun]] = {}
    for run in runs:
        by_env.setdefault(run.env, []).append(run)
    telling = [set(_telling_apart(of_env)) for of_env in by_env.values()]
    names = [name for name in _names(runs) if any(name in of_env for of_env in telling)]
    found: dict[str, dict[str, list[LoggedRun]]] = {}
    for env, of_env in by_env.items():
        for run in of_env:
            found.setdefault(env, {}).setdefault(_label(run, names) or ALL, []).append(run)
    return found


def _names(runs: Sequence[LoggedRun]) -> list[str]:
    """Returns the settings that may be in labels, in the order in which they are tried."""
    names = dict.fromkeys([*FIRST_IN_LABELS, *(name for run in runs for name in run.settings)])
    return [name for name in names if name not in NOT_IN_LABELS]


def _telling_apart(runs: Sequence[LoggedRun]) -> list[str]:
    """Returns as few settings as are needed to tell the groups of one environment apart."""
    chosen: list[str] = []
    groups = 1
    for name in _names(runs):
        split = len({_label(run, [*chosen, name]) for run in runs})
        if split > groups:
            chosen.append(name)
            groups = split
    return chosen


def _label(run: LoggedRun, names: Sequence[str]) -> str:
    return ", ".join(f"{name}={run.settings.get(name)}" for name in names)
