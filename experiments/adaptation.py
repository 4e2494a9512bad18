"""What does adapting bring? Fixed settings, the 2016 rules and `trust`, on five tasks.

    python experiments/adaptation.py [--quick] [--summary]

The best fixed setting of each task is that of the sweep (max_kl.py, to be run before). Its choice was made on three of
the seeds that it is then compared on; fresh_seeds.py compares it on others.
"""

from __future__ import annotations

import numpy as np

from common.comparison import Comparison, Curves, Settings, compare, options_of_runs
from common.grid import TASKS, best_fixed, label
from common.statistics import area, interquartile_mean

SEEDS = (0, 1, 2, 3, 4)
START = {"steps_per_update": 1_024, "max_kl": 0.001}  # where the rules of 2016 start
METHODS: dict[str, Settings] = {
    "fixed, as in 2016": {"adapt": "fixed", "steps_per_update": 10_240, "max_kl": 0.001},
    "2016 rule, steps only": {**START, "adapt": "improvement(kl_delta=None)"},
    "2016 rule, KL only": {"steps_per_update": 20_480, "max_kl": 0.001, "adapt": "improvement(steps_delta=None)"},
    "2016 rule, both": {**START, "adapt": "improvement"},
    "2016 rule, both, margin": {**START, "adapt": "margin"},
    "trust": {"adapt": "trust", "eval_every": 20_000},  # the runs of benchmark_1m.py
}
BEST = "best fixed"


def variants(env: str, *, quick: bool) -> dict[str, Settings]:
    best = {"adapt": "fixed", "steps_per_update": 1_024, "max_kl": 0.01} if quick else best_fixed(env)
    return {**METHODS, BEST: best}


def against_best(curves: Curves, *, quick: bool) -> list[str]:
    """The area of every method over that of the best fixed setting of its task."""
    lines = [
        "",
        "Area over that of the best fixed setting (where returns are negative, more than 1 is worse):",
        "",
        f"| task | {' | '.join(METHODS)} | best fixed setting |",
        f"| --- |{' --- |' * (len(METHODS) + 1)}",
    ]
    for env, by_label in curves.items():
        areas = {name: interquartile_mean(np.array([area(curve) for curve in runs])) for name, runs in by_label.items()}
        if BEST not in areas:
            continue
        cells = [f"{areas[name].mean / areas[BEST].mean:.2f}" if name in areas else "" for name in METHODS]
        lines.append(f"| {env} | {' | '.join(cells)} | {label(variants(env, quick=quick)[BEST])} |")
    return lines


def main() -> None:
    arguments = options_of_runs(__doc__).parse_args()
    compare(
        Comparison(
            name="adaptation",
            question="What does adapting bring?",
            envs=TASKS,
            variants=lambda env: variants(env, quick=arguments.quick),
            seeds=SEEDS,
            conclude=lambda curves: against_best(curves, quick=arguments.quick),
        ),
        arguments,
    )


if __name__ == "__main__":
    main()
