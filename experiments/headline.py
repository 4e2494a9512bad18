"""As long as in 2016: the best rule of 2016, `trust` and fixed settings, with the curves that its authors published.

Fixed settings are the best of each task over a million steps (max_kl.py; Humanoid is not swept). `trust` is there a
second time with batches that may grow at any time, as it was once: what keeping them small until the last million steps
brings.

    python experiments/headline.py [--quick] [--summary]

Reacher 4, Swimmer 6, HalfCheetah and Walker2d 10, Humanoid 15 million steps. The published curves are of MuJoCo 1.3
and of the first versions of the tasks (reference/frans2016_curves.csv, the best rule there: max KL adapts, 20,000 steps
an update; Humanoid was trained without adapting; Walker2d has none). Here the best rule of 2016 is the one that adapts
both (adaptation.py). Swimmer has what all tasks had in 2016 and depends on it: advantages of whole returns, a first
standard deviation of 1, and longer stretches of fewer episodes; see NOTES.md. Written to experiments/results/headline/.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from common import methods
from common.comparison import Comparison, Curves, Settings, compare, options_of_runs
from common.plots import AXIS_NAMES
from common.statistics import final

REFERENCE = Path(__file__).parent / "reference" / "frans2016_curves.csv"
TASKS: dict[str, Settings] = {
    "Reacher-v5": {"total_steps": 4_000_000},
    "Swimmer-v5": {
        "total_steps": 6_000_000,
        "algorithm": "trpo(gae_lambda=1)",
        "policy": "mlp(initial_log_std=0)",
        "num_envs": 4,
    },
    "HalfCheetah-v5": {"total_steps": 10_000_000},
    "Walker2d-v5": {"total_steps": 10_000_000},
    "Humanoid-v5": {"total_steps": 15_000_000},
}
METHODS: dict[str, Settings] = {
    methods.BOTH_OF_2016: methods.METHODS[methods.BOTH_OF_2016],  # the best of them in adaptation.py
    methods.TRUST: {"adapt": "trust"},
    "trust, batches grow at any time": {"adapt": "trust(settle_steps=100_000_000)"},
}
NOT_SWEPT = ("Humanoid-v5",)
SEEDS = (0, 1, 2, 3, 4)
PUBLISHED = "2016, published: max KL adapts (Humanoid: fixed)"
# What `trust` should come to in the end; 4,500 is the best of all runs of 2016.
ASKED = {"Reacher-v5": -4.2, "Swimmer-v5": 125.0, "HalfCheetah-v5": 4_500.0, "Humanoid-v5": 1_030.0}


def variants(env: str, *, quick: bool) -> dict[str, Settings]:
    """The methods with what the task needs, by label."""
    fixed = {} if env in NOT_SWEPT else {methods.BEST_FIXED: methods.fixed_settings(env, quick=quick)}
    every = {**METHODS, **fixed}
    return {label: {**each, **TASKS[env]} for label, each in every.items()}


def published(env: str) -> list[np.ndarray]:
    """The trials of the best rule of 2016: rows of environment steps, seconds and mean return."""
    task = env.removesuffix("-v5")
    with REFERENCE.open() as file:
        rows = [row for row in csv.DictReader(file) if row["env"] == task]
    trials: dict[str, list[list[float]]] = {}
    for row in rows:
        adapts_kl_only = float(row["kl_adapt"]) > 0 and float(row["steps_adapt"]) == 0
        if adapts_kl_only or task == "Humanoid":
            figures = [float(row[name]) for name in ("env_steps", "wall_seconds", "mean_return")]
            trials.setdefault(row["trial"], []).append(figures)
    return [np.array(trial).T for trial in trials.values()]


def draw_published(place: Axes, env: str, axis: str) -> None:
    for number, (env_steps, seconds, mean_return) in enumerate(published(env)):
        at = env_steps if axis == "env_steps" else seconds
        place.plot(at, mean_return, color="0.4", linewidth=0.8, label=PUBLISHED if number == 0 else None)
    if env == "Reacher-v5":
        place.set_ylim(-20, -3)  # all begin below; where they end is the question
    if axis == "wall_seconds":
        place.set_xscale("log")
        place.set_xlabel(f"{AXIS_NAMES[axis]}; 2016 on another machine")


def against_asked(curves: Curves) -> list[str]:
    """The final returns, seed by seed."""
    lines = ["", "Final returns, seeds sorted; asked of `trust`:", "", "| task | settings | asked | seeds |"]
    lines.append("| --- | --- | --- | --- |")
    for env, by_label in curves.items():
        for label, runs in by_label.items():
            seeds = ", ".join(f"{value:.1f}" for value in np.sort([final(curve) for curve in runs]))
            lines.append(f"| {env} | {label} | {ASKED.get(env, '') if label == methods.TRUST else ''} | {seeds} |")
    return lines


def main() -> None:
    arguments = options_of_runs(__doc__).parse_args()
    compare(
        Comparison(
            name="headline",
            question="As long as in 2016",
            envs=tuple(TASKS),
            variants=lambda env: variants(env, quick=arguments.quick),
            seeds=SEEDS,
            fewer_seeds={"Humanoid-v5": SEEDS[:1]},
            axes=("env_steps", "wall_seconds"),
            draw_beside=draw_published,
            conclude=against_asked,
            tuned="Swimmer has settings tuned for it, on seeds from 100 on (NOTES.md): `trpo(gae_lambda=1)`, "
            '`mlp(initial_log_std=0)`, 4 environments; "best fixed" is the best of nine settings per task.',
        ),
        arguments,
    )


if __name__ == "__main__":
    main()
