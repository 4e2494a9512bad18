"""What several seeds say together: interquartile means with bootstrap intervals (Agarwal et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats

from jaxtrpo.runs.reader import Seen

AXES = {"env_steps": "environment steps", "update": "updates", "wall_seconds": "seconds"}
POINTS = 200
RESAMPLES = 1_000


class Curve(NamedTuple):
    """A group of runs at places of an axis."""

    x: np.ndarray
    mean: np.ndarray  # interquartile mean over seeds
    low: np.ndarray  # its 95 % bootstrap interval; NaN where there is one seed
    high: np.ndarray
    seeds: int


def curve_of(runs: Sequence[Seen], x: str, y: str) -> Curve | None:
    """A column of runs that differ by their seeds, up to where the shortest ends; None where none has a value.

    Raises:
      ValueError: a run has no such column.
    """
    for run in runs:
        for name in (x, y):
            if run.columns and name not in run.columns:
                raise ValueError(f"{name} is no column of {run.path}; it has {', '.join(run.columns)}")
    known = [run for run in runs if run.columns and np.isfinite(run.columns[y]).any()]
    if not known:
        return None
    end = min(float(run.columns[x][-1]) for run in known)
    begin = max(float(run.columns[x][np.isfinite(run.columns[y])][0]) for run in known)
    grid = np.linspace(min(begin, end), end, POINTS)
    values = np.stack([_at(run, x, y, grid) for run in known])
    return Curve(grid, *interquartile_mean(values), len(known))


def _at(run: Seen, x: str, y: str, grid: np.ndarray) -> np.ndarray:
    there = np.isfinite(run.columns[y])
    return np.interp(grid, run.columns[x][there], run.columns[y][there])


def interquartile_mean(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of values [seed, point]: the mean of the middle half, and the interval in which it lies in 95 % of resamples."""
    mean = scipy.stats.trim_mean(values, 0.25, axis=0)
    if len(values) == 1:
        nothing = np.full_like(mean, np.nan)
        return mean, nothing, nothing
    chosen = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    drawn = scipy.stats.trim_mean(values[chosen], 0.25, axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return mean, low, high
