"""What was found between `trust`, the best rule of 2016 and the best fixed settings: does it hold on other seeds?

    python experiments/fresh_seeds.py [--quick] [--summary]

Five seeds that nothing was chosen on, neither the best fixed settings (chosen on those of max_kl.py, which is to be run
before) nor anything of `trust`; and all ten together with those of adaptation.py.
"""

from __future__ import annotations

import adaptation
import numpy as np
import scipy.stats

from common.comparison import Comparison, Curves, Settings, compare, options_of_runs
from common.grid import TASKS
from common.runs import STORE, Job, load
from common.statistics import area

SEEDS = (5, 6, 7, 8, 9)
COMPARED = ("trust", "2016 rule, both")  # with the best fixed setting


def variants(env: str, *, quick: bool) -> dict[str, Settings]:
    every = adaptation.variants(env, quick=quick)
    return {name: every[name] for name in (*COMPARED, adaptation.BEST)}


def areas_before(env: str, name: str) -> np.ndarray:
    """Of the seeds of adaptation.py."""
    settings = adaptation.variants(env, quick=False)[name]
    curves = (load(Job(env, seed, settings), STORE) for seed in adaptation.SEEDS)
    return np.array([area(curve) for curve in curves if curve is not None])


def ratio(areas: np.ndarray, best: np.ndarray) -> float:
    """Of interquartile means."""
    return scipy.stats.trim_mean(areas, 0.25) / scipy.stats.trim_mean(best, 0.25)


def over_best(curves: Curves) -> list[str]:
    """The area of each over that of the best fixed setting, on both sets of seeds and on all of them."""
    lines = [
        "",
        "Area over that of the best fixed setting (on Reacher, where returns are negative, less than 1 is better), "
        "with a 95 % bootstrap interval for all ten:",
        "",
        "| task | | seeds 0 to 4 | seeds 5 to 9 | all ten |",
        "| --- | --- | --- | --- | --- |",
    ]
    for env, by_label in curves.items():
        before = {name: areas_before(env, name) for name in by_label}
        fresh = {name: np.array([area(curve) for curve in runs]) for name, runs in by_label.items()}
        every = {name: np.concatenate([before[name], fresh[name]]) for name in by_label}
        for name in COMPARED:
            if name in by_label and adaptation.BEST in by_label:
                one, two, all_ten = (ratio(each[name], each[adaptation.BEST]) for each in (before, fresh, every))
                drawn = (every[name], every[adaptation.BEST])
                found = scipy.stats.bootstrap(
                    drawn, ratio, vectorized=False, n_resamples=2_000, method="percentile", rng=0
                )
                low, high = found.confidence_interval
                lines.append(f"| {env} | {name} | {one:.2f} | {two:.2f} | {all_ten:.2f} ({low:.2f} to {high:.2f}) |")
    return lines


def main() -> None:
    arguments = options_of_runs(__doc__).parse_args()
    compare(
        Comparison(
            name="fresh_seeds",
            question="Trust, the best rule of 2016 and the best fixed setting on other seeds",
            envs=TASKS,
            variants=lambda env: variants(env, quick=arguments.quick),
            seeds=SEEDS,
            conclude=lambda curves: [] if arguments.quick else over_best(curves),
        ),
        arguments,
    )


if __name__ == "__main__":
    main()
