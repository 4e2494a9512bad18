"""How large should a batch be? The 2016 sweep of steps per update, at each of its trust regions.

    python experiments/steps_per_update.py [--quick]

Runs are shared with max_kl.py and adaptation.py.
"""

from __future__ import annotations

from common.comparison import Comparison, compare, options
from common.grid import MAX_KL, SEEDS, STEPS_PER_UPDATE, TASKS, label
from common.runs import AXES

DEFAULT_KL = MAX_KL[-1]


def main() -> None:
    def variants(env: str) -> dict:
        found = [{"steps_per_update": steps, "max_kl": DEFAULT_KL} for steps in STEPS_PER_UPDATE]
        return {label(settings): settings for settings in found}

    compare(
        Comparison(
            name="steps_per_update",
            question=f"How large should a batch be? (max KL {DEFAULT_KL})",
            envs=TASKS,
            variants=variants,
            seeds=SEEDS,
            axes=AXES,
        ),
        options(__doc__).parse_args(),
    )


if __name__ == "__main__":
    main()
