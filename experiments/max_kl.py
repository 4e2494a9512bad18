"""How large should the trust region be? The 2016 sweep of max KL, at each of its batch sizes.

    python experiments/max_kl.py [--quick] [--summary]

Runs are shared with steps_per_update.py and adaptation.py, which takes the best of them as the best fixed setting.
"""

from __future__ import annotations

from common.comparison import Comparison, compare, options_of_runs
from common.grid import SEEDS, TASKS, combinations
from common.plots import AXES


def main() -> None:
    compare(
        Comparison(
            name="max_kl",
            question="How large should the trust region be?",
            envs=TASKS,
            variants=lambda env: combinations(),
            seeds=SEEDS,
            axes=AXES,
        ),
        options_of_runs(__doc__).parse_args(),
    )


if __name__ == "__main__":
    main()
