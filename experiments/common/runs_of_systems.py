"""Several systems on several tasks, one training at a time: a line of JSON for each run, and a table."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import jaxtrpo
from common.peer import answer_of
from common.store import RESULTS
from common.tables import append_line, read_lines

QUICK_STEPS, QUICK_SEED = 5_000, 100


class Task(NamedTuple):
    """What is learned."""

    env: Any  # what `train` takes
    steps: int
    settings: Mapping[str, Any] = {}  # of all systems
    published: str = ""  # a figure of others, with its source


class Peer(NamedTuple):
    """A script of `baselines/`, which prints a line of JSON with `mean`, `std`, `steps` and `seconds`."""

    script: str
    tasks: Sequence[str]
    seeds: Sequence[int]
    flags: Mapping[str, Any] = {}


class Study(NamedTuple):
    """Which runs are made, and what the README says of them."""

    name: str  # of the script, and of the folder of results
    about: str  # what stands before the table
    tasks: Mapping[str, Task]
    systems: Mapping[str, Mapping[str, Any] | Peer]  # settings of `train`, or a peer
    seeds: Sequence[int]
    only: Mapping[str, Sequence[str]] = {}  # tasks of systems whose settings are for these alone
    episodes: int = 100  # of the evaluation after training
    after: str = ""  # what stands behind the table


def trained(task: Task, settings: Mapping[str, Any], seed: int, *, steps: int, episodes: int) -> dict[str, Any]:
    """Trains once, and evaluates the deterministic policy."""
    start = time.perf_counter()
    result = jaxtrpo.train(task.env, total_steps=steps, seed=seed, progress=False, **{**task.settings, **settings})
    seconds = time.perf_counter() - start
    found = jaxtrpo.evaluate(result.policy, task.env, episodes=episodes, seed=1)
    return {
        "steps": int(result.metrics["env_steps"][-1]),
        "mean": round(found.mean, 3),
        "std": round(found.std, 3),
        "exploring": round(float(result.metrics["return_100"][-1]), 3),
        "seconds": round(seconds, 1),
    }


def main(study: Study, description: str | None) -> None:
    """Makes the runs that are not in the table yet, and writes README.md."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=study.tasks, default=list(study.tasks), help="only some tasks")
    parser.add_argument("--systems", nargs="+", choices=study.systems, default=list(study.systems), help="only some")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(study.seeds), help="only some seeds")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has the peers")
    parser.add_argument("--quick", action="store_true", help="one short run of each system, which is not kept")
    given = parser.parse_args()
    folder = RESULTS / study.name
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "runs.jsonl"
    done = {(line["task"], line["system"], line["seed"]) for line in read_lines(table)}
    for seed in [QUICK_SEED] if given.quick else given.seeds:
        for name in given.tasks:
            for system in given.systems:
                task, how = study.tasks[name], study.systems[system]
                left_out = isinstance(how, Peer) and (name not in how.tasks or seed not in (*how.seeds, QUICK_SEED))
                left_out |= name not in study.only.get(system, study.tasks)
                if left_out or (not given.quick and (name, system, seed) in done):
                    continue
                steps = QUICK_STEPS if given.quick else task.steps
                if isinstance(how, Peer):
                    flags = {"task": name, "total-steps": steps, "seed": seed, "episodes": study.episodes, **how.flags}
                    found = answer_of(how.script, flags, python=given.python)
                else:
                    found = trained(task, how, seed, steps=steps, episodes=study.episodes)
                line = {"task": name, "system": system, "seed": seed, **found}
                print(line, flush=True)
                if not given.quick:
                    append_line(table, line)
    if not given.quick:
        (folder / "README.md").write_text(_readme(study, read_lines(table)))


def _readme(study: Study, lines: Sequence[Mapping[str, Any]]) -> str:
    text = [
        study.about,
        "| task | steps | system | mean | seeds | exploring | seconds of a run | steps per second | published |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, task in study.tasks.items():
        for system in study.systems:
            rows = [line for line in lines if (line["task"], line["system"]) == (name, system)]
            if rows:
                exploring = [line["exploring"] for line in rows if "exploring" in line]
                cells = [
                    name,
                    f"{np.median([line['steps'] for line in rows]):,.0f}",
                    system,
                    _number(np.mean([line["mean"] for line in rows])),
                    ", ".join(_number(line["mean"]) for line in sorted(rows, key=lambda line: line["seed"])),
                    _number(np.mean(exploring)) if exploring else "",
                    f"{np.median([line['seconds'] for line in rows]):.0f}",
                    f"{np.median([line['steps'] / line['seconds'] for line in rows]):,.0f}",
                    task.published,
                ]
                text.append(f"| {' | '.join(cells)} |")
    return "\n".join([*text, *([study.after] if study.after else [])]) + "\n"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
