"""What does adapting bring? Fixed settings, the 2016 rules and `trust`, on five tasks.

    python experiments/adaptation.py [--quick] [--summary]

The best fixed setting of each task is that of the sweep (max_kl.py, to be run before). Its choice was made on three of
the seeds that it is then compared on; fresh_seeds.py compares it on others.
"""

from __future__ import annotations

import numpy as np

from common.comparison import Comparison, Curves, compare, options_of_runs
from common.grid import TASKS, label
from common.methods import BEST_FIXED, METHODS, SEEDS, fixed_settings, with_best_fixed
from common.statistics import area, trimmed_mean


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
        areas = {name: trimmed_mean(np.array([area(curve) for curve in runs])) for name, runs in by_label.items()}
        if BEST_FIXED not in areas:
            continue
        cells = [f"{areas[name] / areas[BEST_FIXED]:.2f}" if name in areas else "" for name in METHODS]
        lines.append(f"| {env} | {' | '.join(cells)} | {label(fixed_settings(env, quick=quick))} |")
    return lines


def main() -> None:
    arguments = options_of_runs(__doc__).parse_args()
    compare(
        Comparison(
            name="adaptation",
            question="What does adapting bring?",
            envs=TASKS,
            variants=lambda env: with_best_fixed(env, quick=arguments.quick),
            seeds=SEEDS,
            conclude=lambda curves: against_best(curves, quick=arguments.quick),
        ),
        arguments,
    )


if __name__ == "__main__":
    main()
