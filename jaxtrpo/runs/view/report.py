"""The report: a self-contained HTML page about runs."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bokeh.embed import components
from bokeh.resources import Resources
from jinja2 import Environment, PackageLoader, StrictUndefined

from jaxtrpo.runs.config_file import MADE_WITH
from jaxtrpo.runs.directory import write_whole, writing
from jaxtrpo.runs.reader import NOT_IN_LABELS, LoggedRun
from jaxtrpo.runs.view.curves import AXES
from jaxtrpo.runs.view.figures import LOOKS, draw_figures
from jaxtrpo.runs.view.groups import GRID, groups_of

TEMPLATE = "report.html"
BLANK = "–"  # for a number that is not known


def write_report(runs: Sequence[LoggedRun], path: Path, *, video: Path | None = None) -> None:
    """Writes the page.

    Args:
      runs: runs with any environments and settings.
      path: path of the page.
      video: MP4 file to embed.

    Raises:
      OutputError: the page cannot be written.
    """
    data = None if video is None else base64.b64encode(video.read_bytes()).decode()
    with writing(path, advice=""):
        write_whole(path, page_of(runs, video=data).encode(errors="replace"))


def page_of(runs: Sequence[LoggedRun], *, video: str | None = None, live: str | None = None) -> str:
    """Renders the page.

    Args:
      runs: as in `write_report`.
      video: MP4 file to embed, base64.
      live: shape of the served data. The page polls its server for new data, and reloads once the shape differs; None
        renders a static page.
    """
    groups = groups_of(runs)
    figures = draw_figures(runs, groups)
    script, places = components(list(figures.values()))
    differing, common = settings_of(runs)
    template = Environment(
        loader=PackageLoader("jaxtrpo.runs.view"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    ).get_template(TEMPLATE)
    return template.render(
        title=", ".join(dict.fromkeys(run.env for run in runs)),
        library=Resources(mode="inline", components=["bokeh"]).render(),
        script=script,
        figures=dict(zip(figures, places, strict=True)),
        axes=AXES,
        runs=[
            {**totals, "cells": cells(totals), "group": next(i for i, each in enumerate(groups) if n in each.numbers)}
            for n, totals in enumerate(map(summary, runs))
        ],
        groups=groups,
        made_with=made_with(runs),
        grid=GRID,
        points=[look.points for look in LOOKS if look.points],
        differing=differing,
        common=common,
        video=video,
        live=live,
    )


def settings_of(runs: Sequence[LoggedRun]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Returns the settings that differ between runs, one value per run, and those that all runs share."""
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in NOT_IN_LABELS or name == "seed")
    values = {name: [run.settings.get(name) for run in runs] for name in names}
    differing = {name: found for name, found in values.items() if any(value != found[0] for value in found)}
    return differing, {name: found[0] for name, found in values.items() if name not in differing}


def made_with(runs: Sequence[LoggedRun]) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Returns versions and machines, each with the numbers of the runs that share them, such as "1 to 3, 5"."""
    found: list[tuple[list[int], dict[str, Any], dict[str, Any]]] = []
    for number, run in enumerate(runs, 1):
        versions, machine = (run.settings.get(name, {}) for name in MADE_WITH)
        for numbers, *others in found:
            if others == [versions, machine]:
                numbers.append(number)
                break
        else:
            found.append(([number], versions, machine))
    return [(in_ranges(numbers), versions, machine) for numbers, versions, machine in found]


def in_ranges(numbers: Sequence[int]) -> str:
    """Returns ascending numbers as text, such as "1 to 3, 5"."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    return ", ".join(f"{each[0]} to {each[-1]}" if len(each) > 1 else f"{each[0]}" for each in ranges)


def summary(run: LoggedRun) -> dict[str, Any]:
    """Returns the entries of a run in the tables of the page."""

    def last(name: str) -> float | None:
        known = run.columns.get(name, np.zeros(0))
        known = known[np.isfinite(known)]
        return float(known[-1]) if len(known) else None

    evaluations = run.columns.get("eval_return", np.zeros(0))
    best = float(np.nanmax(evaluations)) if np.isfinite(evaluations).any() else None
    return {
        "name": str(run.path),
        "env": run.env,
        "steps": last("env_steps"),
        "done": run.done,
        "seconds": last("wall_seconds"),
        "return_100": last("return_100"),
        "best": best,
    }


def cells(totals: dict[str, Any]) -> dict[str, str]:
    """Formats the numbers of a `summary` for the page."""
    formats = {"steps": "{:,.0f}", "done": "{:.0%}", "seconds": "{:,.1f}", "return_100": "{:,.1f}", "best": "{:,.1f}"}
    return {name: BLANK if totals[name] is None else text.format(totals[name]) for name, text in formats.items()}
