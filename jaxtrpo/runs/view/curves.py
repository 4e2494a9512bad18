"""Learning curves over seeds: interquartile means with bootstrap intervals (Agarwal et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats

from jaxtrpo.runs.reader import LoggedRun

AXES = {"env_steps": "environment steps", "update": "updates", "wall_seconds": "seconds"}
POINTS = 200
RESAMPLES = 1_000


class Curve(NamedTuple):
    """The learning curve of a group of runs."""

    x: np.ndarray
    mean: np.ndarray  # interquartile mean over seeds
    low: np.ndarray  # bounds of its 95 % bootstrap interval; NaN for a single seed
    high: np.ndarray
    seeds: int


def curve_of(runs: Sequence[LoggedRun], x: str, y: str) -> Curve | None:
    """Aggregates a column over runs that differ only by their seed, up to the end of the shortest run.

    Runs that have no value by then are left out.

    Returns:
      The curve, or None if no run has a value.

    Raises:
      ValueError: a run has no such column.
    """
    for run in runs:
        for name in (x, y):
            if run.columns and name not in run.columns:
                raise ValueError(f"{name} is not a column of {run.path}; it has {', '.join(run.columns)}")
    known = [run for run in runs if run.columns and np.isfinite(run.columns[y]).any()]
    if not known:
        return None
    end = min(float(run.columns[x][-1]) for run in known)
    begins = [float(run.columns[x][np.isfinite(run.columns[y])][0]) for run in known]
    known = [run for run, begin in zip(known, begins, strict=True) if begin <= end]  # without values from later
    grid = np.linspace(max(begin for begin in begins if begin <= end), end, POINTS)
    values = np.stack([_at(run, x, y, grid) for run in known])
    return Curve(grid, *interquartile_mean(values), len(known))


def _at(run: LoggedRun, x: str, y: str, grid: np.ndarray) -> np.ndarray:
    there = np.isfinite(run.columns[y])
    return np.interp(grid, run.columns[x][there], run.columns[y][there])


def interquartile_mean(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the interquartile mean over seeds of values [seed, point], and its 95 % bootstrap interval."""
    mean = scipy.stats.trim_mean(values, 0.25, axis=0)
    if len(values) == 1:
        unknown = np.full_like(mean, np.nan)
        return mean, unknown, unknown
    chosen = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    drawn = scipy.stats.trim_mean(values[chosen], 0.25, axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return mean, low, high
