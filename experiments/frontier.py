"""Return against seconds since the command: which system has the best policy after ten seconds, and after an hour?

    pip install '.[experiments,baselines]'
    python experiments/frontier.py [--tasks T ...] [--systems S ...] [--seeds N ...] [--seconds S] [--quick]

One training at a time, systems in turns, each on all cores and with programs compiled by an earlier start. A run is
watched up to the largest budget of at most `--seconds`; systems that are given the time make a run for each budget.
Runs that are in the table are not made again, unless they were watched for less time. `--python` names an interpreter
that has the other libraries. Written to experiments/results/frontier/.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.machine import machine
from common.plots import colors_of, common_legend, panels, save
from common.store import RESULTS
from common.tables import append_line, read_lines
from jaxtrpo.config import USUAL_ALGORITHM
from jaxtrpo.envs.registry import make_env
from jaxtrpo.training.defaults import ALGORITHM_OF_MANY_COORDINATES, replay_pays_off

BUDGETS = (10, 30, 100, 300, 1_000, 3_000)  # seconds
SEEDS = (0, 1, 2, 3, 4)
EPISODES = 20
TASKS = (
    "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5", "Swimmer-v5", "Reacher-v5", "Pusher-v5",
)  # fmt: skip
ENDLESS = {f"jaxtrpo, {name}": name for name in ("trpo", "trpo_replay", "ppo", "sac")}
TOLD = {f"jaxtrpo, {name}, given the time": name for name in ("trpo", "trpo_replay", "ppo")}
OURS = {**TOLD, **ENDLESS}
OTHERS = {
    "PPO (SB3)": ("sb3", "ppo"),
    "SAC (SB3)": ("sb3", "sac"),
    "TQC (sb3-contrib)": ("sb3_contrib", "tqc"),
    "TRPO (sb3-contrib)": ("sb3_contrib", "trpo"),
    "PPO (SBX)": ("sbx", "ppo"),
    "SAC (SBX)": ("sbx", "sac"),
    "CrossQ (SBX)": ("sbx", "crossq"),
}
SYSTEMS = (*OURS, *OTHERS)
HERE = Path(__file__).parent
NEAR = 0.03  # of the first's return


@functools.cache
def default_of(task: str, budget: float) -> str:
    """Returns the system that `jaxtrpo train` is by default for a run of so many seconds."""
    differs = replay_pays_off(make_env(task), None, budget)
    algorithm = ALGORITHM_OF_MANY_COORDINATES if differs else USUAL_ALGORITHM
    return f"jaxtrpo, {algorithm}, given the time"


def watched(
    task: str,
    system: str,
    seed: int,
    budgets: Sequence[float],
    known: Mapping[str, Any] | None = None,
    *,
    python: str,
    cache: str,
) -> dict[str, Any]:
    """Returns what the policies of one system were worth at the budgets.

    Args:
      task: environment.
      system: one of `SYSTEMS`.
      seed: random seed.
      budgets: seconds since the command.
      known: what its policies were worth at the first of these budgets; runs that are given the time are not repeated.
      python: an interpreter that has the other libraries.
      cache: directory for compiled programs.
    """
    found = [] if known is None or system not in TOLD else [known]
    left = budgets[len(found[0]["returns"]) :] if found else budgets
    runs = [[budget] for budget in left] if system in TOLD else [left]
    found += [_watched(task, system, seed, run, python=python, cache=cache) for run in runs]
    joined = {key: [value for each in found for value in each[key]] for key in ("returns", "steps", "seconds")}
    return {"task": task, "system": system, "seed": seed, **joined}


def _watched(
    task: str, system: str, seed: int, budgets: Sequence[float], *, python: str, cache: str
) -> dict[str, list[float]]:
    """Starts one training."""
    if system in OURS:
        words = [sys.executable, "-m", "common.until_budgets", "--algorithm", OURS[system]]
        words += ["--told"] if system in TOLD else []
    else:
        library, algorithm = OTHERS[system]
        words = [python, str(HERE / "baselines" / "until_budgets.py"), "--library", library, "--algorithm", algorithm]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    words += ["--task", task, "--seed", str(seed), "--episodes", str(EPISODES), "--budgets", *map(str, budgets)]
    done = subprocess.run([*words, "--begin", str(time.time())], env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def readme(lines: Sequence[Mapping[str, Any]]) -> str:
    """The tables: who is first at each budget, and all means."""
    text = [ABOUT.format(machine=machine())]
    cells = {(task, budget): _ranked(lines, task, at) for task in TASKS for at, budget in enumerate(BUDGETS)}
    cells = {place: ranked for place, ranked in cells.items() if default_of(*place) in ranked and {*ranked} & {*OTHERS}}
    near = sum(_is_near(ranked, default_of(*place)) for place, ranked in cells.items())
    text += [f"The default is first, or within 3 % of the first, in {near} of {len(cells)} cells.", ""]
    text += ["| task | seconds | default | best of ours | best of the others | seeds |"]
    text += ["| --- | --- | --- | --- | --- | --- |"]
    for (task, budget), ranked in cells.items():
        order = sorted(ranked, key=lambda system: -ranked[system].mean())
        best = (next(system for system in order if system in group) for group in (OURS, OTHERS))
        shown = " | ".join(f"{system} {_spread(ranked[system])}" for system in best)
        fewest, most = min(map(len, ranked.values())), max(map(len, ranked.values()))
        seeds = str(most) if fewest == most else f"{fewest} to {most}"
        text.append(f"| {task} | {budget} | {_spread(ranked[default_of(task, budget)])} | {shown} | {seeds} |")
    for task in TASKS:
        rows = [line for line in lines if line["task"] == task]
        if not rows:
            continue
        most = max(len(row["returns"]) for row in rows)
        text += ["", f"## {task}", "", f"![{task}]({task}.png)", ""]
        text += [f"| | {' | '.join(f'{budget} s' for budget in BUDGETS[:most])} | steps per second |"]
        text += [f"| {' | '.join(['---'] * (most + 2))} |"]
        for system in SYSTEMS:
            own = [row for row in rows if row["system"] == system]
            if own:
                means = [_at(own, at) for at in range(most)]
                speed = np.median([row["steps"][-1] / row["seconds"][-1] for row in own])
                shown = [_spread(values) if len(values) else "" for values in means]
                text.append(f"| {system} | {' | '.join(shown)} | {speed:,.0f} |")
    return "\n".join(text) + "\n"


def _at(rows: Sequence[Mapping[str, Any]], at: int) -> np.ndarray:
    return np.array([row["returns"][at] for row in rows if len(row["returns"]) > at])


def _ranked(lines: Sequence[Mapping[str, Any]], task: str, at: int) -> dict[str, np.ndarray]:
    found = {
        system: _at([line for line in lines if (line["task"], line["system"]) == (task, system)], at)
        for system in SYSTEMS
    }
    return {system: values for system, values in found.items() if len(values)}


def _is_near(ranked: Mapping[str, np.ndarray], default: str) -> bool:
    first = max(values.mean() for values in ranked.values())
    return bool(ranked[default].mean() >= first - NEAR * abs(first))


def _spread(values: np.ndarray) -> str:
    digits = 1 if abs(values.mean()) < 100 else 0
    return f"{values.mean():.{digits}f}" + (f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else "")


def draw(lines: Sequence[Mapping[str, Any]], task: str, place: Path) -> None:
    """A line for each system, the mean over seeds; a point for each run."""
    figure, axes = panels(1, 1, f"{task}: return of the deterministic policy")
    colors = colors_of(SYSTEMS)
    for system in SYSTEMS:
        rows = [line for line in lines if (line["task"], line["system"]) == (task, system)]
        if rows:
            style = "-" if system in TOLD else "--" if system in OURS else ":"
            most = max(len(row["returns"]) for row in rows)
            means = [_at(rows, at).mean() for at in range(most)]
            axes[0, 0].plot(BUDGETS[:most], means, style, color=colors[system], label=system)
            for row in rows:
                axes[0, 0].plot(BUDGETS[: len(row["returns"])], row["returns"], ".", color=colors[system], markersize=3)
    longest = max(len(line["returns"]) for line in lines if line["task"] == task)
    axes[0, 0].set(xscale="log", xlabel="seconds since the command", ylabel="return")
    axes[0, 0].set_xticks(BUDGETS[:longest], [f"{budget:,}" for budget in BUDGETS[:longest]])
    axes[0, 0].minorticks_off()
    common_legend(figure)
    save(figure, place)


ABOUT = """# The best return for every budget of time

Made by `python experiments/frontier.py` on {machine}.
Return of the deterministic policy that each system has so many seconds after its command (imports and compiling
included; programs had been compiled by an earlier start): mean of 20 episodes, mean over seeds, ± standard deviation
over seeds. One training at a time, on all cores, systems in turns. Ours has its defaults; others have the settings of
RL Baselines3 Zoo for the task, or those for MuJoCo where it has none for the task. "Given the time" is a run for each
budget, which knows it (`stop_after_seconds`); all others are one run that does not know when it will end. The policy is
that of the first step after the budget, or the one that a run of ours hands out at that step (see NOTES.md for which).
Rows are of machines that differ in speed by up to two (NOTES.md), and after 300 seconds only the default and
sb3-contrib's TRPO were watched.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, help="only some tasks")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, help="only some systems")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS[:3], help="only some seeds")
    parser.add_argument("--seconds", type=float, default=BUDGETS[-1], help="largest budget")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has the other libraries")
    parser.add_argument("--quick", action="store_true", help="ten seconds of each system, which are not kept")
    given = parser.parse_args()
    folder = RESULTS / "frontier"
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "runs.jsonl"
    budgets = [budget for budget in BUDGETS if budget <= (BUDGETS[0] if given.quick else given.seconds)]
    with tempfile.TemporaryDirectory() as cache:
        how = {"python": given.python, "cache": cache}
        compiled: set[tuple[str, str]] = set()
        for seed in [100] if given.quick else given.seeds:
            for task in given.tasks:
                done = {
                    line["system"]: line
                    for line in ([] if given.quick else _longest(read_lines(table)))
                    if (line["task"], line["seed"]) == (task, seed)
                }
                for system in given.systems:
                    if system in done and len(done[system]["returns"]) >= len(budgets):
                        continue
                    if not given.quick and (task, system) not in compiled:
                        watched(task, system, seed, BUDGETS[:1], **how)
                        compiled.add((task, system))
                    line = watched(task, system, seed, budgets, done.get(system), **how)
                    print(line, flush=True)
                    if not given.quick:
                        append_line(table, line)
    if not given.quick:
        lines = _longest(read_lines(table))
        for task in {line["task"] for line in lines}:
            draw(lines, task, folder / f"{task}.png")
        (folder / "README.md").write_text(readme(lines))


def _longest(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of the runs of a task, system and seed, the one that was watched longest."""
    kept: dict[tuple[str, str, int], Mapping[str, Any]] = {}
    for line in lines:
        place = line["task"], line["system"], line["seed"]
        if place not in kept or len(line["returns"]) >= len(kept[place]["returns"]):
            kept[place] = line
    return list(kept.values())


if __name__ == "__main__":
    main()
