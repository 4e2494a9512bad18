"""Plots of learning curves, with their data as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from jaxtrpo.runs.directory import write_whole, writing
from jaxtrpo.runs.reader import ALL, LoggedRun, in_groups
from jaxtrpo.runs.view.curves import AXES, Curve, curve_of

COLUMNS = 3  # panels per row
LEGEND_WIDTH = 90  # characters per row
DASHES = ("-", "--", "-.", ":")


def curves_of(runs: Sequence[LoggedRun], x: str, y: str) -> dict[str, dict[str, Curve]]:
    """Computes the curves of all groups of runs: environment -> label of the group -> curve.

    Raises:
      ValueError: a run has no such column, or the column is empty in all runs.
    """
    found = {
        env: {label: curve for label, group in groups.items() if (curve := curve_of(group, x, y)) is not None}
        for env, groups in in_groups(runs).items()
    }
    found = {env: curves for env, curves in found.items() if curves}
    if not found:
        raise ValueError(f"{y} has no value in any of the runs")
    return found


def draw(curves: Mapping[str, Mapping[str, Curve]], stem: Path, *, x: str, y: str) -> list[Path]:
    """Draws a panel for each environment with a line for each group, and writes the figure and its data.

    Args:
      curves: curves from `curves_of`.
      stem: path of the files without suffix: stem.png, stem.svg and stem.csv.
      x: column of the horizontal axis.
      y: column of the vertical axis.

    Returns:
      The paths of the files.

    Raises:
      OutputError: the files cannot be written.
    """
    figure = _figure(curves, x, y)
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg", "csv")]
    with writing(stem, advice=""):
        for path in files[:2]:
            picture = io.BytesIO()
            # Text stays text in the SVG, and the same curves give the same bytes.
            with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "jaxtrpo"}):
                metadata = {"Date": None} if path.suffix == ".svg" else None
                figure.savefig(picture, format=path.suffix[1:], dpi=120, metadata=metadata)
            write_whole(path, picture.getvalue())
        write_whole(files[2], _numbers(curves, x).encode())
    return files


def _figure(curves: Mapping[str, Mapping[str, Curve]], x: str, y: str) -> Figure:
    columns = min(len(curves), COLUMNS)
    rows = -(-len(curves) // columns)
    figure = Figure(figsize=(max(4.4 * columns, 5.5), 3.3 * rows + 0.5), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).ravel()
    labels = dict.fromkeys(label for of in curves.values() for label in of)
    colors = {label: f"C{i}" for i, label in enumerate(labels)}  # ten, which begin again
    dashes = {label: DASHES[i // 10 % len(DASHES)] for i, label in enumerate(labels)}
    for place, (env, of_env) in zip(places, curves.items(), strict=False):
        for label, curve in of_env.items():
            style = {"color": colors[label], "linestyle": dashes[label], "linewidth": 1.6}
            marker = "o" if curve.x[0] == curve.x[-1] else None  # a single value
            place.plot(curve.x, curve.mean, label=_as_text(label), marker=marker, **style)
            place.fill_between(curve.x, curve.low, curve.high, color=colors[label], alpha=0.2, linewidth=0)
        seeds = sorted({curve.seeds for curve in of_env.values()})
        many = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        place.set(title=f"{_as_text(env)}, {many} {'seed' if many == '1' else 'seeds'}", xlabel=AXES[x], ylabel=y)
        place.grid(alpha=0.3)
        place.xaxis.set_major_formatter(EngFormatter(sep=""))
        place.spines[["top", "right"]].set_visible(False)
    for place in places[len(curves) :]:
        place.set_visible(False)
    if set(colors) != {ALL}:
        shown = [zip(*place.get_legend_handles_labels(), strict=True) for place in figure.axes]
        named = {label: line for pairs in shown for line, label in pairs}
        beside = max(1, LEGEND_WIDTH * columns // COLUMNS // max(map(len, named)))
        figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=beside, fontsize="small")
    return figure


def _as_text(label: str) -> str:
    """Matplotlib would read what is between dollars as a formula."""
    return label.replace("$", r"\$")


def _numbers(curves: Mapping[str, Mapping[str, Curve]], x: str) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("env", "settings", "seeds", x, "interquartile_mean", "low", "high"))
    for env, of_env in curves.items():
        for label, curve in of_env.items():
            for row in zip(curve.x, curve.mean, curve.low, curve.high, strict=True):
                table.writerow((env, label, curve.seeds, *(f"{value:.6g}" if value == value else "" for value in row)))
    return text.getvalue()
