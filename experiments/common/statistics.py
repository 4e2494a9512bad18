"""What several seeds say together: interquartile means with bootstrap intervals (Agarwal et al. 2021, rliable)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# pandas would take our script of that name for the library of which it makes use if it is there.
sys.modules["bottleneck"] = None  # pyright: ignore[reportArgumentType]
import scipy.stats  # noqa: E402

from common.store import Curve  # noqa: E402

REPETITIONS = 2_000


class Estimate(NamedTuple):
    """An estimate from several seeds and its 95 % interval; arrays if there is one for each point of a curve."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def interquartile_mean(values: np.ndarray) -> Estimate:
    """Of values [seed] or [seed, point]. A single seed has no interval."""
    values = np.asarray(values, float)
    table = values.reshape(len(values), -1)
    points = trimmed_mean(table)
    low = high = np.full(points.shape, np.nan)
    if len(values) > 1:
        from rliable import library  # which nothing else needs

        np.random.seed(0)  # rliable draws from NumPy's own state; the same runs shall have the same interval
        _, intervals = library.get_interval_estimates(
            {"": table[:, None, :]},
            lambda drawn: trimmed_mean(drawn[:, 0]),
            reps=REPETITIONS,
        )
        low, high = intervals[""]
    shape = values.shape[1:]
    return Estimate(points.reshape(shape), np.reshape(low, shape), np.reshape(high, shape))


def trimmed_mean(values: np.ndarray) -> np.ndarray:
    """What rliable's `aggregate_iqm` is, of values [seed] or of all columns of [seed, point] at once."""
    return scipy.stats.trim_mean(values, proportiontocut=0.25, axis=0)


def best_of_mean(curves: Sequence[Curve]) -> tuple[float, float]:
    """Best over training of the mean of the evaluations over seeds, and the standard deviation there."""
    points = min(len(curve["eval_return"]) for curve in curves)  # seeds differ by one where updates grow
    returns = np.stack([curve["eval_return"][:points] for curve in curves])
    mean = returns.mean(axis=0)
    at = int(np.nanargmax(mean))
    return float(mean[at]), float(returns[:, at].std(ddof=1)) if len(returns) > 1 else float("nan")


def evaluated(curve: Curve, steps: float) -> float:
    """Mean of the three evaluations of the deterministic policy that end at so many environment steps."""
    here = np.isfinite(curve["eval_return"]) & (curve["env_steps"] <= 1.01 * steps)
    return float(np.mean(curve["eval_return"][here][-3:]))


def ratio(values: np.ndarray, others: np.ndarray) -> Estimate:
    """Of the interquartile means of two groups of seeds, which need not be the same."""

    def of_means(values: np.ndarray, others: np.ndarray) -> np.ndarray:
        return trimmed_mean(values) / trimmed_mean(others)

    drawn = scipy.stats.bootstrap(
        (values, others), of_means, vectorized=False, n_resamples=REPETITIONS, method="percentile", rng=0
    )
    return Estimate(of_means(values, others), *drawn.confidence_interval)


def on_grid(curves: Sequence[Curve], axis: str = "env_steps", points: int = 50) -> tuple[np.ndarray, np.ndarray]:
    """Mean returns [seed, point] of runs at the same places of an axis, and those places.

    Before a run has finished its first episode, its return is that of the first ones it finishes.
    """
    grid = np.linspace(0, min(curve[axis][-1] for curve in curves), points + 1)[1:]
    return grid, np.stack([_interpolated(curve, axis, grid) for curve in curves])


def on_one_clock(curves: Sequence[Curve]) -> list[Curve]:
    """The curves with seconds that end at their median.

    Runs of one setting do the same work; what they differ by is what else the machine had to do.
    """
    end = np.median([curve["wall_seconds"][-1] for curve in curves])
    return [{**curve, "wall_seconds": curve["wall_seconds"] * (end / curve["wall_seconds"][-1])} for curve in curves]


def area(curve: Curve) -> float:
    """Mean return over the whole run, every environment step counting alike."""
    grid = np.linspace(0, curve["env_steps"][-1], 501)[1:]
    return float(_interpolated(curve, "env_steps", grid).mean())


def final(curve: Curve, part: float = 0.05) -> float:
    """Mean return of the last part of the run."""
    steps = curve["env_steps"]
    return float(np.nanmean(curve["mean_return"][steps > (1 - part) * steps[-1] - 1]))


def seconds(curve: Curve) -> float:
    """What collecting and learning took, without evaluations."""
    # One of them is not there where both are one program.
    return sum(float(np.nansum(curve[name])) for name in ("collect_seconds", "learn_seconds") if name in curve)


def moving_mean(curve: Curve, episodes: int = 100) -> Curve:
    """The curve whose return is everywhere that of the last so many episodes, or of all where there are not as many.

    Episodes that a point of a curve has together count alike.
    """
    ended = np.where(np.isnan(curve["mean_return"]), 0, curve["episodes"])
    number = np.cumsum([0, *ended])
    returns = np.cumsum([0, *ended * np.nan_to_num(curve["mean_return"])])
    first = np.maximum(number[1:] - episodes, 0)
    with np.errstate(invalid="ignore"):  # where none has ended
        mean = (returns[1:] - np.interp(first, number, returns)) / (number[1:] - first)
    return {**curve, "mean_return": mean}


def _interpolated(curve: Curve, axis: str, grid: np.ndarray) -> np.ndarray:
    known = ~np.isnan(curve["mean_return"])
    return np.interp(grid, curve[axis][known], curve["mean_return"][known])
