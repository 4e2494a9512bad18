"""Training runs that experiments share: done once, kept under experiments/results/runs, found again by their settings.

A run is kept as a curve of about 50 points: RUNS/ENV/HASH.json has every setting, RUNS/ENV/HASH-seedN.csv the curve.
Settings are written out, with those of algorithm, policy, critic and rule: a run is found again however it was asked
for, and is not once a default has changed. A setting that was not there when a run was made counts as its default, so
that new settings do not lose old runs.
Runs that are stopped go on where they were when the same script is started again; throw them away (runs/unfinished) if
the code has changed in between.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common.tables import write_csv
from common.words import in_full
from jaxtrpo.algorithms.algorithm import starting_with
from jaxtrpo.config import Config, resolve_sizes
from jaxtrpo.machine import available_cores
from jaxtrpo.words import parse

STORE = Path(__file__).parent.parent / "results" / "runs"
UNFINISHED = STORE.parents[2] / "runs" / "unfinished"  # where runs that are stopped wait to go on
AXES = ("env_steps", "update", "wall_seconds")
POINTS = 50
TRAIN = (sys.executable, "-m", "jaxtrpo", "train")  # the command
# How each column of metrics.csv becomes one of a curve: over the updates that end nearest to the same fiftieth. No
# algorithm measures all of it; a curve has the columns of its own.
LAST = ("env_steps", "wall_seconds", "update")
SUMS = ("episodes", "collect_seconds", "learn_seconds", "line_search_steps", "accepted", "invalid_steps")
MEANS = (
    "kl", "max_kl", "steps_per_update", "entropy", "policy_std", "explained_variance", "cg_residual", "slope", "signal",
    "target_kl", "penalty", "learning_rate", "clip", "clip_fraction", "epochs", "gradient_norm", "staleness",
)  # fmt: skip
NAMES = (*LAST, *SUMS, *MEANS, "mean_return", "eval_return")

Curve = Mapping[str, np.ndarray]


def with_cache(folder: str | Path) -> dict[str, str]:
    """The environment of a command that keeps its compiled functions in this folder."""
    # Where the cache is by default on Linux; a directory that JAX is told would hold fewer of our programs.
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    return environment


class Job(NamedTuple):
    """One training run. `settings` are those that are not the defaults."""

    env: str
    seed: int
    settings: Mapping[str, Any]


def train_all(
    jobs: Iterable[Job], *, store: Path = STORE, only_known: bool = False, workers: int | None = None
) -> list[Curve | None]:
    """The curves of all jobs; those that are not in the store are trained, as many at once as there are cores.

    Two runs with one actor each use two cores better than one run with two actors after another: learning has parts
    that one core does alone.
    """
    if only_known:
        return [load(job, store) for job in jobs]
    cores = _cores() if workers is None else itertools.repeat(None)
    with ThreadPoolExecutor(workers or available_cores(), initializer=lambda: _stay_on(next(cores))) as pool:
        return list(pool.map(lambda job: load(job, store) or _train(job, store), jobs))


def _cores() -> Iterator[int | None]:
    """One for each run at a time: those that believe to have all cores start more processes than can run."""
    return iter(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else itertools.repeat(None)


def _stay_on(core: int | None) -> None:
    """The calling thread, and the processes that it starts, use this core alone."""
    if core is not None:
        os.sched_setaffinity(0, {core})


def load(job: Job, store: Path = STORE) -> Curve | None:
    """The curve of a finished run, or None; seconds of actors who do not wait for each other count once."""
    path = _path(job, store)
    if not path.exists():
        return None
    with path.open() as file:
        rows = list(csv.DictReader(file))
    curve = {name: np.array([float(row[name] or "nan") for row in rows]) for name in NAMES if name in rows[0]}
    if "staleness" in curve:
        for name in ("collect_seconds", "learn_seconds"):
            curve[name] /= job.settings.get("actors", 1) or available_cores()
    return curve


def load_all(jobs: Iterable[Job], *, made_by: str) -> list[Curve]:
    """The curves of runs that another script has to have made."""
    found = [(job, load(job)) for job in jobs]
    missing = [f"{job.env} seed {job.seed} {dict(job.settings)}" for job, curve in found if curve is None]
    if missing:
        raise SystemExit(f"{missing[0]} is missing ({len(missing)} in all); run experiments/{made_by} first")
    return [curve for _, curve in found if curve is not None]


def all_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting as it goes into JSON, written out, without what does not say how a run learns.

    What is short for a setting of the algorithm, as `max_kl` is, stands there alone.

    Raises:
      ValueError: a setting is out of bounds.
      TypeError: there is no such setting.
    """
    config = Config(**{"actors": 1, **settings})
    short = {} if config.max_kl is None else {"max_kl": config.max_kl}
    algorithm = starting_with(parse("algorithm", config.algorithm), **short)
    steps = config.steps_per_update or int(algorithm.hyperparameters["steps_per_update"])
    actors = config.actors or available_cores()
    sizes = resolve_sizes(config, actors, num_envs=algorithm.num_envs, steps_per_update=steps)
    config = dataclasses.replace(
        config,
        algorithm=in_full("algorithm", config.algorithm, **short),
        policy=in_full("policy", config.policy),
        critic=in_full("critic", config.critic or algorithm.critic),
        adapt=in_full("adapt", config.adapt or algorithm.adapt),
        max_kl=None,
        steps_per_update=steps,
        num_envs=sizes.num_envs,
        segment_length=sizes.segment_length,
    )
    return {name: value for name, value in dataclasses.asdict(config).items() if name != "seed"}


@functools.cache
def _settings_in(text: str) -> Mapping[str, Any] | None:
    """What a description says in the settings of today; None if there are no such settings any more."""
    try:
        return all_settings(json.loads(text))
    except (TypeError, ValueError):
        return None


def _description(job: Job, store: Path) -> Path:
    """The file that has these settings, or the one that shall have them."""
    wanted = all_settings(job.settings)
    for file in (store / job.env).glob("*.json"):
        if _settings_in(file.read_text()) == wanted:
            return file
    return store / job.env / f"{hashlib.sha256(_as_text(wanted).encode()).hexdigest()[:10]}.json"


def _path(job: Job, store: Path) -> Path:
    description = _description(job, store)
    return description.with_name(f"{description.stem}-seed{job.seed}.csv")


def _as_text(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, indent=1, sort_keys=True)


def as_flags(settings: Mapping[str, Any]) -> list[str]:
    """Settings as words of a command line."""
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def _train(job: Job, store: Path) -> Curve:
    settings = {"actors": 1, "seed": job.seed, **job.settings}
    out = UNFINISHED / job.env / _path(job, store).stem
    command = [*TRAIN, job.env, "--out", str(out), "--resume", "--quiet", *as_flags(settings)]
    devices = {"JAX_NUM_CPU_DEVICES": str(settings["actors"])}
    subprocess.run(command, check=True, env={**os.environ, **devices}, stdout=subprocess.DEVNULL)
    with (out / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    keep(job, rows, store)
    shutil.rmtree(out)
    curve = load(job, store)
    assert curve is not None
    print(
        f"finished {job.env} seed {job.seed} {dict(job.settings)}: {np.nanmean(curve['mean_return'][-5:]):.1f}",
        flush=True,
    )
    return curve


def keep(job: Job, rows: list[dict[str, str]], store: Path = STORE) -> None:
    """Thins out the rows of a metrics.csv and writes them where `load` finds them."""
    settings = all_settings(job.settings)
    description = _description(job, store)
    description.parent.mkdir(parents=True, exist_ok=True)
    if not description.exists():
        description.write_text(_as_text(settings) + "\n")
    columns = {name: np.array([float(row.get(name) or "nan") for row in rows]) for name in NAMES}
    names = [name for name in NAMES if not np.isnan(columns[name]).all()]
    points = _thinned(columns, settings["total_steps"])
    write_csv(_path(job, store), names, ([_cell(point[name]) for name in names] for point in points))


def _thinned(columns: Mapping[str, np.ndarray], total_steps: int) -> Iterable[dict[str, float]]:
    width = total_steps / POINTS
    place = np.clip(np.round(columns["env_steps"] / width), 1, POINTS)
    for number in np.unique(place):
        here = {name: column[place == number] for name, column in columns.items()}
        whole = np.where(np.isnan(here["mean_return"]), 0, here["episodes"])
        yield {
            **{name: here[name][-1] for name in LAST},
            **{name: np.nansum(here[name]) for name in SUMS},  # a2c does not time collecting by itself
            **{name: _mean(here[name]) for name in MEANS},
            "mean_return": np.nansum(whole * here["mean_return"]) / whole.sum() if whole.sum() else np.nan,
            "eval_return": _mean(here["eval_return"]),
        }


def _mean(values: np.ndarray) -> float:
    return np.nan if np.isnan(values).all() else float(np.nanmean(values))


def _cell(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.5g}" if abs(value) < 1e5 else f"{value:.0f}"
