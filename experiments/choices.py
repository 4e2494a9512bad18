"""Do the defaults stand beside their neighbours? What `trust` aims at, and damping; half a million steps each.

    python experiments/choices.py [--quick] [--summary]

The seeds are not among those that other results are of. How the defaults were found is in
results/benchmark_1m/NOTES.md.
"""

from __future__ import annotations

from common.comparison import Comparison, Settings, compare, options_of_runs

TASKS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
SEEDS = (100, 101, 102)
OF_ALL: Settings = {"algorithm": "trpo", "total_steps": 500_000}
VARIANTS: dict[str, Settings] = {
    "default": {},
    "trust, strength 0.0003": {"adapt": "trust(strength=0.0003)"},
    "trust, strength 0.0015": {"adapt": "trust(strength=0.0015)"},
    "trust, strength 0.003": {"adapt": "trust(strength=0.003)"},
    "fixed": {"adapt": "fixed"},
    "fixed, damping 0.01": {"adapt": "fixed", "algorithm": "trpo(cg_damping=0.01)"},
    "fixed, damping 0.1": {"adapt": "fixed", "algorithm": "trpo(cg_damping=0.1)"},
}


def main() -> None:
    compare(
        Comparison(
            name="choices",
            question="Do the defaults stand beside their neighbours?",
            envs=TASKS,
            variants=lambda env: {
                label: {"total_steps": 500_000, "algorithm": "trpo", **each} for label, each in VARIANTS.items()
            },
            seeds=SEEDS,
        ),
        options_of_runs(__doc__).parse_args(),
    )


if __name__ == "__main__":
    main()
