"""How large should a batch be? The 2016 sweep of steps per update, at the default max KL.

    python experiments/steps_per_update.py [--quick] [--summary]

Runs are shared with max_kl.py and adaptation.py.
"""

from __future__ import annotations

from common.comparison import Comparison, compare, options_of_runs
from common.grid import MAX_KL, SEEDS, TASKS, combinations
from common.plots import AXES

DEFAULT_KL = MAX_KL[-1]


def main() -> None:
    swept = {label: settings for label, settings in combinations().items() if settings["max_kl"] == DEFAULT_KL}
    compare(
        Comparison(
            name="steps_per_update",
            question=f"How large should a batch be? (max KL {DEFAULT_KL})",
            envs=TASKS,
            variants=lambda env: swept,
            seeds=SEEDS,
            axes=AXES,
        ),
        options_of_runs(__doc__).parse_args(),
    )


if __name__ == "__main__":
    main()
