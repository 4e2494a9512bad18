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

from jaxtrpo.runs.directory import write_whole, writing
from jaxtrpo.runs.reader import NOT_IN_LABELS, LoggedRun
from jaxtrpo.runs.view.curves import AXES
from jaxtrpo.runs.view.figures import COLORS, DASHES, draw_figures

TEMPLATE = "report.html"


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
        write_whole(path, page_of(runs, video=data).encode())


def page_of(runs: Sequence[LoggedRun], *, video: str | None = None, live: str | None = None) -> str:
    """Renders the page.

    Args:
      runs: as in `write_report`.
      video: MP4 file to embed, base64.
      live: shape of the served data. The page polls its server for new data, and reloads once the shape differs; None
        renders a static page.
    """
    figures = draw_figures(runs)
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
        runs=[{**totals, "cells": cells(totals)} for totals in map(summary, runs, range(len(runs)))],
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


def summary(run: LoggedRun, number: int) -> dict[str, Any]:
    """Returns the entries of a run in the tables of the page."""

    def last(name: str) -> float | None:
        known = run.columns.get(name, np.zeros(0))
        known = known[np.isfinite(known)]
        return float(known[-1]) if len(known) else None

    evaluations = run.columns.get("eval_return", np.zeros(0))
    best = float(np.nanmax(evaluations)) if np.isfinite(evaluations).any() else None
    total, steps = run.settings.get("total_steps"), last("env_steps")
    return {
        "number": number + 1,
        "name": str(run.path),
        "env": run.env,
        "color": COLORS[number % len(COLORS)],
        "dash": DASHES[number // len(COLORS) % len(DASHES)],
        "steps": steps,
        "done": min(steps / total, 1.0) if steps and total else None,
        "seconds": last("wall_seconds"),
        "return_100": last("return_100"),
        "best": best,
        "versions": run.settings.get("versions", {}),
        "machine": run.settings.get("machine", {}),
    }


def cells(totals: dict[str, Any]) -> dict[str, str]:
    """Formats the numbers of a `summary` for the page."""
    formats = {"steps": "{:,.0f}", "done": "{:.0%}", "seconds": "{:,.1f}", "return_100": "{:,.1f}", "best": "{:,.1f}"}
    return {name: "–" if totals[name] is None else text.format(totals[name]) for name, text in formats.items()}
