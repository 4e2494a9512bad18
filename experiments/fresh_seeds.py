"""Is `trust` as good as the best fixed setting of a task, on seeds that this setting was not chosen on?

    python experiments/fresh_seeds.py [--quick] [--summary]

The best of nine settings owes some of its lead to the seeds that it was chosen on (those of max_kl.py, which is to be
run before). Nothing was chosen on the seeds here.
"""

from __future__ import annotations

from adaptation import BEST, against_best, variants

from common.comparison import Comparison, Settings, compare, options
from common.grid import TASKS

SEEDS = (5, 6, 7, 8, 9)


def both(env: str, *, quick: bool) -> dict[str, Settings]:
    every = variants(env, quick=quick)
    return {name: every[name] for name in ("trust", BEST)}


def main() -> None:
    arguments = options(__doc__).parse_args()
    compare(
        Comparison(
            name="fresh_seeds",
            question="Is trust as good as the best fixed setting, on seeds that it was not chosen on?",
            envs=TASKS,
            variants=lambda env: both(env, quick=arguments.quick),
            seeds=SEEDS,
            conclude=lambda curves: against_best(curves, quick=arguments.quick),
        ),
        arguments,
    )


if __name__ == "__main__":
    main()
