"""Learning curves that can be read on their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from common.machine import machine  # noqa: E402
from common.statistics import interquartile_mean, on_grid, on_one_clock  # noqa: E402
from common.store import Curve  # noqa: E402

AXIS_NAMES = {"env_steps": "environment steps", "update": "updates", "wall_seconds": "seconds of the median seed"}
AXES = ("env_steps", "update", "wall_seconds")


def panels(rows: int, columns: int, title: str) -> tuple[Figure, np.ndarray]:
    """A figure of rows x columns axes that says on which machine it was made."""
    size = (4.2 * columns, 3.1 * rows + 0.8)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    figure.suptitle(f"{title}\n{machine()}", fontsize="medium")
    return figure, axes


def colors_of(labels: Iterable[str]) -> dict[str, str]:
    """A color for each label, the same in all axes of a figure, even in those where some are missing."""
    return {label: f"C{number}" for number, label in enumerate(dict.fromkeys(labels))}


def common_legend(figure: Figure) -> None:
    """One legend below all axes, where a label has to mean the same in all: one in each would hide the curves.

    The figure grows by its height.
    """
    named = {label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    inches = 0.6 + 0.05 * max(map(len, named))  # of the longest: its line, and its letters at this size
    columns = max(1, int(figure.get_figwidth() / inches))
    figure.set_figheight(figure.get_figheight() + 0.15 * -(-len(named) // columns))
    figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=columns, fontsize=7)


def save(figure: Figure, path: Path) -> None:
    """Writes a figure that is done."""
    figure.savefig(path, dpi=90)
    plt.close(figure)


def draw_curves(
    axes: Axes, curves: Mapping[str, Sequence[Curve]], colors: Mapping[str, str], *, title: str, axis: str
) -> None:
    """A line for each label: the interquartile mean over seeds; its 95 % bootstrap interval is shaded."""
    for label, runs in curves.items():
        if axis == "wall_seconds":
            runs = on_one_clock(runs)
        grid, values = on_grid(runs, axis)
        estimate = interquartile_mean(values)
        axes.plot(grid, estimate.mean, color=colors[label], label=label)
        axes.fill_between(grid, estimate.low, estimate.high, color=colors[label], alpha=0.2, linewidth=0)
    fewest, most = min(map(len, curves.values())), max(map(len, curves.values()))
    seeds = f"{most} {'seed' if most == 1 else 'seeds'}"
    seeds = seeds if fewest == most else f"{fewest} to {seeds}"
    axes.set(title=f"{title}, {seeds}", xlabel=AXIS_NAMES[axis], ylabel="mean return of an episode")
    axes.grid(alpha=0.3)
