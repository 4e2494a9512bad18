"""Training runs that experiments share: done once, found again by their settings (store.py).

Runs that are stopped go on where they were when the same script is started again; throw them away (runs/unfinished) if
the code has changed in between.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from common.store import RESULTS, USUAL, Curve, Job, Store, all_settings, as_text
from jaxtrpo.parallel.machine import available_cores
from jaxtrpo.runs.checkpoint import load_checkpoint

UNFINISHED = RESULTS.parents[1] / "runs" / "unfinished"  # where runs that are stopped wait to go on
TRAIN = (sys.executable, "-m", "jaxtrpo", "train")  # the command


def with_cache(folder: str | Path) -> dict[str, str]:
    """The environment of a command that keeps its compiled functions in this folder."""
    # Where the cache is by default on Linux; a directory that JAX is told would hold fewer of our programs.
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    return environment


def train_all(
    jobs: Iterable[Job], *, store: Store, only_known: bool = False, workers: int | None = None
) -> list[Curve | None]:
    """The curves of all jobs; those that are not in the store are trained, as many at once as there are cores.

    Two runs with one actor each use two cores better than one run with two actors after another: learning has parts
    that one core does alone.
    """
    if only_known:
        return [store.find(job) for job in jobs]
    cores = _cores() if workers is None else itertools.repeat(None)
    with ThreadPoolExecutor(workers or available_cores(), initializer=lambda: _stay_on(next(cores))) as pool:
        return list(pool.map(lambda job: store.find(job) or _train(job, store), jobs))


def _cores() -> Iterator[int | None]:
    """One for each run at a time: those that believe to have all cores start more processes than can run."""
    return iter(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else itertools.repeat(None)


def _stay_on(core: int | None) -> None:
    """The calling thread, and the processes that it starts, use this core alone."""
    if core is not None:
        os.sched_setaffinity(0, {core})


@functools.cache
def _every_run() -> Store:
    return Store(RESULTS / "any")


def load_all(jobs: Iterable[Job], *, made_by: str) -> list[Curve]:
    """The curves of runs that another script has to have made."""
    found = [(job, _every_run().find(job)) for job in jobs]
    missing = [f"{job.env} seed {job.seed} {dict(job.settings)}" for job, curve in found if curve is None]
    if missing:
        raise SystemExit(f"{missing[0]} is missing ({len(missing)} in all); run experiments/{made_by} first")
    return [curve for _, curve in found if curve is not None]


def differences(one: Path, other: Path) -> list[str]:
    """What two finished runs do not have in common, but for their seconds."""
    a, b = load_checkpoint(one), load_checkpoint(other)
    found = [name for name in a.state if not np.array_equal(a.state[name], b.state[name], equal_nan=True)]
    names = [name for name in a.metrics if not name.endswith("seconds")]
    found += [name for name in names if not np.array_equal(a.metrics[name], b.metrics[name], equal_nan=True)]
    rows = [(out / "metrics.csv").read_text().count("\n") for out in (one, other)]
    return found + (["metrics.csv"] if rows[0] != rows[1] else [])


def as_flags(settings: Mapping[str, Any]) -> list[str]:
    """Settings as words of a command line."""
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def _train(job: Job, store: Store) -> Curve:
    written_out = all_settings(job.settings)
    # The policy in full, as the table will say: its first noise depends on the task by default.
    settings = {"actors": 1, "seed": job.seed, **USUAL, **job.settings, "policy": written_out["policy"]}
    name = hashlib.sha256(as_text(written_out).encode()).hexdigest()[:10]
    out = UNFINISHED / job.env / f"{name}-seed{job.seed}"
    command = [*TRAIN, job.env, "--out", str(out), "--resume", "--quiet", *as_flags(settings)]
    devices = {"JAX_NUM_CPU_DEVICES": str(settings["actors"])}
    subprocess.run(command, check=True, env={**os.environ, **devices}, stdout=subprocess.DEVNULL)
    with (out / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    store.add(job, rows)
    shutil.rmtree(out)
    curve = store.find(job)
    assert curve is not None
    print(
        f"finished {job.env} seed {job.seed} {dict(job.settings)}: {np.nanmean(curve['mean_return'][-5:]):.1f}",
        flush=True,
    )
    return curve
