"""The same tasks and seeds under several settings: a CSV, a plot and a table."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from common.machine import machine
from common.plots import colors_of, common_legend, draw_curves, panels, save
from common.runs import train_all
from common.statistics import Estimate, area, final, interquartile_mean, seconds
from common.store import RESULTS, Curve, Job, Store
from common.tables import write_csv

COLUMNS = ("env", "variant", "seed", "env_steps", "area", "final_return", "seconds")  # of runs.csv
QUICK = Path("runs") / "quick"  # what a quick try writes, not to be committed

Settings = Mapping[str, Any]
Curves = Mapping[str, Mapping[str, Sequence[Curve]]]  # by task and label, in the order of seeds


class Comparison(NamedTuple):
    """What is compared."""

    name: str  # of the script, and of the folder of results
    question: str
    envs: Sequence[str]
    variants: Callable[[str], Mapping[str, Settings]]  # task -> settings by label
    seeds: Sequence[int]
    axes: Sequence[str] = ("env_steps",)  # of the plot's rows
    fewer_seeds: Mapping[str, Sequence[int]] = {}  # of some tasks
    draw_beside: Callable[[Axes, str, str], None] = lambda place, env, axis: None  # what else belongs into the plot
    conclude: Callable[[Curves], Sequence[str]] = lambda curves: ()  # lines that end the README
    tuned: str = ""  # sentence about settings that were tuned for a task


def options(description: str | None) -> argparse.ArgumentParser:
    """What every script understands."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"a short try on few tasks, written to {QUICK}")
    return parser


def options_of_runs(description: str | None) -> argparse.ArgumentParser:
    """What scripts understand that only look at training runs."""
    parser = options(description)
    parser.add_argument("--summary", action="store_true", help="train nothing; use the runs that are there")
    return parser


class Extent(NamedTuple):
    """How much of an experiment is done, and where it writes."""

    folder: Path  # of its results
    store: Store  # of its runs
    seeds: Sequence[int]
    settings: Settings  # of every run


def extent_of(name: str, seeds: Sequence[int], *, quick: bool) -> Extent:
    """All of it, or what a quick try does."""
    folder = (QUICK if quick else RESULTS) / name
    folder.mkdir(parents=True, exist_ok=True)
    store = Store(folder)
    return Extent(folder, store, seeds[:2], {"total_steps": 40_000}) if quick else Extent(folder, store, seeds, {})


def require_runs(name: str, found: Mapping[str, Any]) -> None:
    """Stops before a summary of nothing overwrites one of something."""
    if not found:
        raise SystemExit(f"{name}: no run is there yet; leave out --summary")


def compare(comparison: Comparison, arguments: argparse.Namespace) -> None:
    """Trains what is missing, then writes curves.png, runs.csv and README.md of the comparison."""
    extent = extent_of(comparison.name, comparison.seeds, quick=arguments.quick)
    jobs = {}
    for seed in extent.seeds:  # outermost: stopped early, everything has some
        for env in comparison.envs[:2] if arguments.quick else comparison.envs:
            if seed not in comparison.fewer_seeds.get(env, extent.seeds):
                continue
            for label, settings in comparison.variants(env).items():
                jobs[env, label, seed] = Job(env, seed, {**settings, **extent.settings})
    found = dict(zip(jobs, train_all(jobs.values(), store=extent.store, only_known=arguments.summary), strict=True))
    curves: dict[str, dict[str, list[Curve]]] = {}
    for (env, label, _), curve in found.items():
        if curve is not None:
            curves.setdefault(env, {}).setdefault(label, []).append(curve)
    require_runs(comparison.name, curves)
    _plot(comparison, curves, extent.folder / "curves.png")
    write_csv(extent.folder / "runs.csv", COLUMNS, _rows(found))
    (extent.folder / "README.md").write_text(_summary(comparison, curves))
    print((extent.folder / "README.md").read_text())


def _plot(comparison: Comparison, curves: Curves, path: Path) -> None:
    title = f"{comparison.question}\n{_estimates(comparison)}, shaded"
    figure, axes = panels(len(comparison.axes), len(curves), title)
    colors = colors_of(label for env in curves for label in comparison.variants(env))
    for row, axis in zip(axes, comparison.axes, strict=True):
        for place, (env, by_label) in zip(row, curves.items(), strict=True):
            draw_curves(place, by_label, colors, title=env, axis=axis)
            comparison.draw_beside(place, env, axis)
    common_legend(figure)
    save(figure, path)


def _rows(found: Mapping[tuple[str, str, int], Curve | None]) -> Iterator[tuple[Any, ...]]:
    for case, curve in found.items():
        if curve is not None:
            figures = area(curve), final(curve), seconds(curve)
            yield *case, int(curve["env_steps"][-1]), *(f"{value:.5g}" for value in figures)


def _summary(comparison: Comparison, curves: Curves) -> str:
    lines = [
        f"# {comparison.question}",
        "",
        f"`python experiments/{comparison.name}.py` on {machine()}. Each run is a process with one actor, as many at "
        f"once as there are cores. Returns of complete episodes of the exploring policy. {_estimates(comparison)}. "
        "Area is the mean return over the whole run, final that over the last 5 %. Seconds are those of collecting and "
        "learning, medians over seeds: the machine was shared, and took twice as long at times."
        + (f" {comparison.tuned}" if comparison.tuned else ""),
        "",
        "![Learning curves](curves.png)",
        "",
        "| task | settings | area | final | seconds | seeds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for env, by_label in curves.items():
        for label, runs in by_label.items():
            lines.append(row_of(env, label, runs, (area, final)))
    lines += comparison.conclude(curves)
    return "\n".join(lines) + "\n"


def row_of(task: str, label: str, runs: Sequence[Curve], figures: Sequence[Callable[[Curve], float]]) -> str:
    """Of a table in Markdown: interquartile means of the figures, the median of the seconds, and how many seeds."""
    shown = (interval(interquartile_mean(np.array([of(curve) for curve in runs]))) for of in figures)
    taken = np.median([seconds(curve) for curve in runs])
    return f"| {task} | {label} | {' | '.join(shown)} | {taken:.0f} | {len(runs)} |"


def _estimates(comparison: Comparison) -> str:
    if len(comparison.seeds) < 4:  # nothing to trim, and hardly more to draw from than the seeds themselves
        return f"Means over {len(comparison.seeds)} seeds, and about the range of the seeds"
    return "Interquartile means over seeds, with 95 % bootstrap intervals"


def interval(estimate: Estimate, digits: int = 1) -> str:
    """In words, such as 12.3 (10.1 to 13.0)."""
    mean, low, high = (f"{value:.{digits}f}" for value in estimate)
    return mean if np.isnan(estimate.low) else f"{mean} ({low} to {high})"


def mean_and_each(values: Sequence[float], digits: int = 0) -> str:
    """In words, such as 12 (10, 14)."""
    return f"{np.mean(values):.{digits}f} ({', '.join(f'{value:.{digits}f}' for value in values)})"
