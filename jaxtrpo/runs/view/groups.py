"""Groups of runs that differ only by their seed, and how the report draws them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from jaxtrpo.runs.reader import ALL, LoggedRun, in_groups
from jaxtrpo.runs.view.curves import AXES

# Distinguishable with colour vision deficiencies (Okabe and Ito 2008).
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b", "#b8a900", "#6a3d9a")
DASHES = ("solid", "dashed", "dotdash")  # for more groups than colours
GRID = 200  # points of a group's columns
QUARTILES = (0.25, 0.5, 0.75)
PARTS = ("low", "middle", "high")  # of a group's columns


class Group(NamedTuple):
    """Runs that differ only by their seed."""

    name: str
    numbers: tuple[int, ...]  # of its runs, counted from 0
    color: str
    dash: str


def groups_of(runs: Sequence[LoggedRun]) -> list[Group]:
    """Returns the groups of runs, in the order of their first runs; names have the environment if there are several."""
    number_of = {id(run): number for number, run in enumerate(runs)}
    by_env = in_groups(runs)
    found = []
    for env, groups in by_env.items():
        for label, members in groups.items():
            parts = [env] if len(by_env) > 1 or label == ALL else []
            name = ": ".join([*parts, *([label] if label != ALL else [])])
            found.append((tuple(number_of[id(run)] for run in members), name))
    found.sort()
    return [
        Group(name, numbers, COLORS[i % len(COLORS)], DASHES[i // len(COLORS) % len(DASHES)])
        for i, (numbers, name) in enumerate(found)
    ]


def column_of(name: str, axis: str, part: str) -> str:
    """Returns the name of a group's column: low, middle or high of a metric against an axis."""
    return f"{name}@{axis}@{part}"


def quartiles(runs: Sequence[LoggedRun], names: Iterable[str]) -> dict[str, np.ndarray]:
    """Returns medians and quartiles over runs of some metrics against every axis, up to the end of the shortest run.

    Returns:
      The axes, and three columns for each axis and metric (see `column_of`); NaN where no run has a value.
    """
    begun = [run for run in runs if len(run.columns.get("update", ()))]
    columns: dict[str, np.ndarray] = {}
    for axis in AXES:
        first, last = (
            (max(run.columns[axis][0] for run in begun), min(run.columns[axis][-1] for run in begun))
            if begun
            else (np.nan, np.nan)
        )
        columns[axis] = np.linspace(min(first, last), last, GRID, dtype=np.float32)
        for name in names:
            values = np.stack([_at(run, axis, name, columns[axis]) for run in begun] or [np.full(GRID, np.nan)])
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "All-NaN slice")
                low_to_high = np.nanquantile(values, QUARTILES, axis=0).astype(np.float32)
            columns.update({column_of(name, axis, part): low_to_high[i] for i, part in enumerate(PARTS)})
    return columns


def _at(run: LoggedRun, axis: str, name: str, points: np.ndarray) -> np.ndarray:
    there = np.isfinite(run.columns.get(name, np.zeros(0)))
    if not there.any():
        return np.full(len(points), np.nan)
    return np.interp(points, run.columns[axis][there], run.columns[name][there], left=np.nan)
