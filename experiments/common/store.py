"""Curves of training runs, kept in one table an experiment: a row a point, every setting a column.

A run is found again by its settings, in the tables of all experiments: those that share runs train them once. Settings
are written out, with those of algorithm, policy, critic and rule: a run is found however it was asked for, and is not
once a default has changed. A setting that was not there when a run was made counts as its default, so that new
settings do not lose old runs.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from common.words import in_full
from jaxtrpo.algorithms.algorithm import starting_with
from jaxtrpo.algorithms.natural_gradient import DAMPING
from jaxtrpo.config import USUAL_ALGORITHM, USUAL_DISCOUNT, Config, for_batch, resolve_sizes
from jaxtrpo.config.specs import parse
from jaxtrpo.parallel.machine import available_cores
from jaxtrpo.policies.heads import INITIAL_LOG_STD

RESULTS = Path(__file__).parent.parent / "results"
TABLE = "curves.csv.gz"  # in the folder of an experiment
POINTS = 50
# How each column of metrics.csv becomes one of a curve: over the updates that end nearest to the same fiftieth. No
# algorithm measures all of it; a curve has the columns of its own.
LAST = ("env_steps", "wall_seconds", "update")
SUMS = ("episodes", "collect_seconds", "learn_seconds", "line_search_steps", "accepted", "invalid_steps")
MEANS = (
    "kl", "max_kl", "steps_per_update", "entropy", "policy_std", "explained_variance", "cg_residual",
    "predicted_gain", "gain_ratio", "target_kl", "penalty", "learning_rate",
    "clip", "clip_fraction", "epochs", "gradient_norm", "staleness",
)  # fmt: skip
NAMES = (*LAST, *SUMS, *MEANS, "mean_return", "eval_return")
RUN = ("run", "env", "seed")  # the first columns; the settings are between them and those of the curve
SETTING = "setting."  # begins the names of their columns: what changes while training has one of its own

Curve = Mapping[str, np.ndarray]


# What a run has whose settings do not say otherwise, in whatever environment: that of most, and of all earlier ones.
USUAL = {"algorithm": USUAL_ALGORITHM, "discount": USUAL_DISCOUNT, "noise_correlation": 0.0, "eval_every": 0}


class Job(NamedTuple):
    """One training run. `settings` are those that are not the defaults, or not those of `USUAL`."""

    env: str
    seed: int
    settings: Mapping[str, Any]


class Store:
    """The runs of one experiment, beside which those of others are found; its own come first."""

    def __init__(self, folder: Path):
        """`folder`, in that of all results, has the experiment's table once there is a run."""
        self._table = folder / TABLE
        self._lock = threading.Lock()

    @functools.cached_property
    def _curves(self) -> dict[str, Curve]:
        found: dict[str, Curve] = {}
        tables = self._table.parent.parent.glob(f"*/{TABLE}")
        for table in sorted(tables, key=lambda table: (table == self._table, table)):  # its own are the last word
            found.update(_by_key(_read(table)))
        return found

    def find(self, job: Job) -> Curve | None:
        """The curve of a finished run, or None; seconds of actors who do not wait for each other count once."""
        curve = self._curves.get(_key(job.env, job.seed, all_settings(job.settings)))
        if curve is None or "staleness" not in curve:
            return curve
        actors = job.settings.get("actors", 1) or available_cores()
        return {
            name: each / actors if name in ("collect_seconds", "learn_seconds") else each
            for name, each in curve.items()
        }

    def add(self, job: Job, rows: list[dict[str, str]]) -> None:
        """Keeps a run, whose rows of metrics.csv it thins out."""
        settings = all_settings(job.settings)
        columns = {name: np.array([float(row.get(name) or "nan") for row in rows]) for name in NAMES}
        points = pd.DataFrame(
            {name: _cell(point[name]) for name in NAMES} for point in _thinned(columns, settings["total_steps"])
        )
        with self._lock:
            known = _read(self._table) if self._table.exists() else pd.DataFrame(columns=[*RUN])
            number = known["run"].astype(int).max() + 1 if len(known) else 0
            which = {"run": str(number), "env": job.env, "seed": str(job.seed), **_as_cells(settings)}
            made = points.assign(**which)
            of_run = [*RUN, *sorted({*known.columns, *which} - {*RUN, *NAMES})]
            table = pd.concat([known, made]).reindex(columns=[*of_run, *NAMES]).fillna("")
            _write(table, self._table)
            self._curves.update(_by_key(made.fillna("")))


def all_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting as it goes into JSON, written out, without what does not say how a run learns.

    What is short for a setting of the algorithm, as `max_kl` is, stands there alone.

    Raises:
      ValueError: a setting is out of bounds.
      TypeError: there is no such setting.
    """
    config = Config(**{"actors": 1, **USUAL, **settings})
    short = {} if config.max_kl is None else {"max_kl": config.max_kl}
    words = str(config.algorithm)
    algorithm = starting_with(parse("algorithm", words), **short)
    steps = config.steps_per_update or int(algorithm.hyperparameters["steps_per_update"])
    actors = config.actors or available_cores()
    larger = steps / int(algorithm.hyperparameters["steps_per_update"])
    num_envs = for_batch(actors, algorithm.num_envs, larger=larger)
    sizes = resolve_sizes(config, actors, num_envs=num_envs, steps_per_update=steps)
    policy = parse("policy", config.policy or algorithm.policy).spec_string  # in which -1 is -1.0
    config = dataclasses.replace(
        config,
        # What None stands for here, where no observation has images.
        algorithm=in_full("algorithm", words, **short).replace("cg_damping=None", f"cg_damping={DAMPING}"),
        policy=in_full("policy", policy).replace("log_std=None", f"log_std={INITIAL_LOG_STD}"),
        critic=in_full("critic", config.critic or algorithm.critic),
        adapt=in_full("adapt", config.adapt or algorithm.adapt),
        total_steps=config.most_steps,
        max_kl=None,
        steps_per_update=steps,
        num_envs=sizes.num_envs,
        segment_length=sizes.segment_length,
    )
    return {name: value for name, value in dataclasses.asdict(config).items() if name != "seed"}


def as_text(settings: Mapping[str, Any]) -> str:
    """The same for the same settings."""
    return json.dumps(settings, indent=1, sort_keys=True)


def _key(env: str, seed: int, settings: Mapping[str, Any]) -> str:
    return f"{env} {seed} {as_text(settings)}"


def _by_key(table: pd.DataFrame) -> dict[str, Curve]:
    """The curves of a table; none of those whose settings there are no more."""
    found: dict[str, Curve] = {}
    names = [name for name in table.columns if name.startswith(SETTING)]
    known: dict[tuple[str, ...], Mapping[str, Any] | None] = {}
    for _, rows in table.groupby("run", sort=False):
        first = rows.iloc[0]
        cells = tuple(first[names])
        if cells not in known:
            known[cells] = _in_settings_of_today(dict(zip(names, cells, strict=True)))
        settings = known[cells]
        if settings is not None:
            curve = {name: pd.to_numeric(rows[name]).to_numpy(float) for name in NAMES if name in rows}
            measured = {name: values for name, values in curve.items() if not np.isnan(values).all()}
            found[_key(first["env"], int(first["seed"]), settings)] = measured
    return found


def _in_settings_of_today(cells: Mapping[str, str]) -> Mapping[str, Any] | None:
    try:
        return all_settings({name.removeprefix(SETTING): _value(cell) for name, cell in cells.items() if cell})
    except (TypeError, ValueError):
        return None


def _as_cells(settings: Mapping[str, Any]) -> dict[str, str]:
    """Text as it is, everything else as in JSON; blank is what a table does not know."""
    return {SETTING + name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}


def _value(cell: str) -> Any:
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def _read(table: Path) -> pd.DataFrame:
    return pd.read_csv(table, dtype=str, keep_default_na=False)


def _write(table: pd.DataFrame, path: Path) -> None:
    """Whole or not at all; the same bytes for the same runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"partial-{path.name}")
    table.to_csv(partial, index=False, lineterminator="\n", compression={"method": "gzip", "mtime": 0})
    partial.replace(path)


def _thinned(columns: Mapping[str, np.ndarray], total_steps: int) -> Iterable[dict[str, float]]:
    width = total_steps / POINTS
    place = np.clip(np.round(columns["env_steps"] / width), 1, POINTS)
    for number in np.unique(place):
        here = {name: column[place == number] for name, column in columns.items()}
        whole = np.where(np.isnan(here["mean_return"]), 0, here["episodes"])
        yield {
            **{name: here[name][-1] for name in LAST},
            **{name: np.nan if np.isnan(columns[name]).all() else np.nansum(here[name]) for name in SUMS},
            **{name: _mean(here[name]) for name in MEANS},
            "mean_return": np.nansum(whole * here["mean_return"]) / whole.sum() if whole.sum() else np.nan,
            "eval_return": _mean(here["eval_return"]),
        }


def _mean(values: np.ndarray) -> float:
    return np.nan if np.isnan(values).all() else float(np.nanmean(values))


def _cell(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.5g}" if abs(value) < 1e5 else f"{value:.0f}"
