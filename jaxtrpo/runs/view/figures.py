"""Interactive figures of runs, for the report page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from bokeh.models import ColumnDataSource, CustomJSTickFormatter, HoverTool
from bokeh.plotting import figure

from jaxtrpo.runs.reader import LoggedRun
from jaxtrpo.runs.view.curves import AXES
from jaxtrpo.runs.view.groups import COLORS, Group, column_of, quartiles

X = "env_steps"
HEIGHT = 260  # pixels
COMPACT = "return Intl.NumberFormat('en', {notation: 'compact'}).format(tick)"  # 200K, 1M
PARTS = ("collecting", "learning", "other")
THIN = {"line_width": 0.8, "line_alpha": 0.35}  # one of several runs of a group


class Look(NamedTuple):
    """Definition of a figure: a line for each run and column, and the median of each group of several runs."""

    title: str
    columns: tuple[str, ...]  # the first is drawn with the style of the group, the second dotted
    log: bool = False
    points: str | None = None  # column drawn as points


LOOKS = (
    Look("Return of the last 100 episodes; points: deterministic evaluations", ("return_100",), points="eval_return"),
    Look("Mean length of the training episodes that ended, in steps", ("mean_length",)),
    Look("KL divergence of each update in nats; dotted: its bound", ("kl", "max_kl"), log=True),
    Look("Environment steps per update", ("steps_per_update",)),
    Look("Gain ratio: fraction of the predicted gain confirmed by later batches", ("gain_ratio",)),
    Look("Explained variance of the value critic", ("explained_variance",)),
    Look("Entropy of the policy in nats", ("entropy",)),
    Look("Standard deviation of actions", ("policy_std",)),
)  # fmt: skip


def draw_figures(runs: Sequence[LoggedRun], groups: Sequence[Group]) -> dict[str, Any]:
    """Draws a figure for each of `LOOKS` with data in any run, and one of the time spent; returns them by title.

    Bokeh models are named for the script of the page: "run-0" is the data of a run, "0:kl" one of its lines, "group-0"
    the data of a group, and "g0:kl" its median and band.
    """
    sources = {f"run-{i}": ColumnDataSource(dict(columns_of(run)), name=f"run-{i}") for i, run in enumerate(runs)}
    for i, group in enumerate(groups):
        if len(group.numbers) > 1:
            sources[f"group-{i}"] = ColumnDataSource(dict(columns_of_group(runs, group)), name=f"group-{i}")
    figures: dict[str, Any] = {}
    for look in LOOKS:
        wanted = [*look.columns, *([look.points] if look.points else [])]
        if any(name in run.columns for run in runs for name in wanted):
            figures[look.title] = _figure(look, runs, groups, sources)
    figures["Time spent"] = _time(runs)
    return figures


def columns_of(run: LoggedRun) -> dict[str, Any]:
    """Returns the columns of a run that the figures show, in single precision."""
    wanted = {*AXES, *(name for look in LOOKS for name in (*look.columns, look.points) if name)}
    return {name: run.columns[name].astype(np.float32) for name in sorted(wanted) if name in run.columns}


def columns_of_group(runs: Sequence[LoggedRun], group: Group) -> dict[str, Any]:
    """Returns the medians and quartiles of a group that the figures show."""
    members = [runs[number] for number in group.numbers]
    return quartiles(
        members, [look.columns[0] for look in LOOKS if any(look.columns[0] in run.columns for run in members)]
    )


def _figure(
    look: Look, runs: Sequence[LoggedRun], groups: Sequence[Group], sources: Mapping[str, ColumnDataSource]
) -> Any:
    drawn = _empty(y_axis_type="log" if look.log else "linear")
    lines = []
    for g, group in enumerate(groups):
        several = len(group.numbers) > 1
        for i in group.numbers:
            columns, how = runs[i].columns, {"color": group.color, "source": sources[f"run-{i}"]}
            for number, name in enumerate(look.columns):
                if name in columns:
                    style = {"line_width": 1.8, "line_dash": "dotted" if number else group.dash}
                    faint = THIN if several else {"line_alpha": 0.5} if number else {}
                    lines.append(drawn.line(X, name, name=f"{i}:{name}", **how, **{**style, **faint}))
            if look.points in columns:
                alpha = 0.4 if several else 1.0
                name = f"{i}:{look.points}"
                drawn.scatter(
                    X, look.points, size=6, marker="circle", line_color=None, fill_alpha=alpha, name=name, **how
                )
        if several and any(look.columns[0] in runs[i].columns for i in group.numbers):
            _draw_group(drawn, look.columns[0], g, group, sources[f"group-{g}"])
    tips = [(name, f"@{name}") for name in (*AXES, *look.columns)]
    drawn.add_tools(HoverTool(tooltips=tips, renderers=lines, mode="mouse"))
    return drawn


def _draw_group(drawn: Any, name: str, number: int, group: Group, source: ColumnDataSource) -> None:
    low, middle, high = (column_of(name, X, part) for part in ("low", "middle", "high"))
    how = {"source": source, "name": f"g{number}:{name}"}
    drawn.varea(X, low, high, fill_color=group.color, fill_alpha=0.18, **how)
    drawn.line(X, middle, line_color=group.color, line_dash=group.dash, line_width=2.2, **how)


def _time(runs: Sequence[LoggedRun]) -> Any:
    labels = [str(i + 1) for i in range(len(runs))]
    seconds = dict(zip(PARTS, map(list, zip(*map(seconds_of, runs), strict=True)), strict=True))
    drawn = _empty(y_range=labels[::-1], height=90 + 26 * len(runs), x_axis_label="seconds")
    bars = drawn.hbar_stack(
        list(PARTS),
        y="run",
        height=0.7,
        color=(*COLORS[:2], "#bbbbbb"),
        source=ColumnDataSource({"run": labels, **seconds}, name="time"),
        legend_label=list(PARTS),
    )
    tips = [("run", "@run"), *((name, f"@{name}{{0.0}}") for name in PARTS)]
    drawn.add_tools(HoverTool(tooltips=tips, renderers=bars))
    drawn.legend.orientation, drawn.legend.background_fill_alpha = "horizontal", 0.6
    drawn.add_layout(drawn.legend[0], "above")
    return drawn


def seconds_of(run: LoggedRun) -> tuple[float, float, float]:
    """Returns the seconds a run spent on collecting, on learning, and on the rest (evaluating, compiling, saving)."""
    if not len(run.columns.get("wall_seconds", ())):
        return 0.0, 0.0, 0.0
    collect, learn = (float(np.nansum(run.columns.get(name, 0.0))) for name in ("collect_seconds", "learn_seconds"))
    return collect, learn, max(float(run.columns["wall_seconds"][-1]) - collect - learn, 0.0)


def _empty(*, height: int = HEIGHT, x_axis_label: str = AXES[X], **how: Any) -> Any:
    drawn: Any = figure(
        height=height,
        sizing_mode="stretch_width",
        tools="pan,box_zoom,wheel_zoom,reset,save",
        x_axis_label=x_axis_label,
        **how,
    )
    drawn.xaxis.formatter = CustomJSTickFormatter(code=COMPACT)
    drawn.toolbar.logo, drawn.toolbar.autohide = None, True
    drawn.background_fill_color = drawn.border_fill_color = None
    return drawn
