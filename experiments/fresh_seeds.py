"""What was found between `trust`, the best rule of 2016 and the best fixed settings: does it hold on other seeds?

    python experiments/fresh_seeds.py [--quick] [--summary]

Five seeds that nothing was chosen on, neither the best fixed settings (chosen on those of max_kl.py, which is to be run
before) nor anything of `trust`; and all ten together with those of adaptation.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from common.comparison import Comparison, Curves, Settings, compare, interval, options_of_runs
from common.grid import TASKS
from common.methods import BEST_FIXED, BOTH_OF_2016, TRUST, with_best_fixed
from common.methods import SEEDS as OTHER_SEEDS
from common.runs import load_all
from common.statistics import area, ratio
from common.store import Curve, Job

SEEDS = (5, 6, 7, 8, 9)
COMPARED = (TRUST, BOTH_OF_2016)  # with the best fixed setting


def variants(env: str, *, quick: bool) -> dict[str, Settings]:
    every = with_best_fixed(env, quick=quick)
    return {name: every[name] for name in (*COMPARED, BEST_FIXED)}


def over_best(curves: Curves) -> list[str]:
    """The area of each over that of the best fixed setting, on both sets of seeds and on all of them."""
    lines = [
        "",
        "Area over that of the best fixed setting, with 95 % bootstrap intervals (on Reacher, where returns are "
        "negative, less than 1 is better):",
        "",
        "| task | | seeds 0 to 4 | seeds 5 to 9 | all ten |",
        "| --- | --- | --- | --- | --- |",
    ]
    for env, by_label in curves.items():
        if BEST_FIXED in by_label:
            best = areas(env, BEST_FIXED, by_label)
            for name in (name for name in COMPARED if name in by_label):
                ratios = (ratio(*pair) for pair in zip(areas(env, name, by_label), best, strict=True))
                lines.append(f"| {env} | {name} | {' | '.join(interval(each, digits=2) for each in ratios)} |")
    return lines


def areas(env: str, name: str, by_label: Mapping[str, Sequence[Curve]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the other seeds, of the fresh ones, and of all."""
    settings = variants(env, quick=False)[name]
    others = load_all((Job(env, seed, settings) for seed in OTHER_SEEDS), made_by="adaptation.py")
    fresh = by_label[name]
    one, two = (np.array([area(curve) for curve in runs]) for runs in (others, fresh))
    return one, two, np.concatenate([one, two])


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
