"""The ways to adapt that are compared: the rules of 2016, `trust`, and fixed settings beside them."""

from __future__ import annotations

from common.comparison import Settings
from common.grid import best_fixed

START = {"steps_per_update": 1_024, "max_kl": 0.001}  # where the rules of 2016 start
TRUST, BOTH_OF_2016, BEST_FIXED = "trust", "2016 rule, both", "best fixed"
METHODS: dict[str, Settings] = {
    "fixed, as in 2016": {"adapt": "fixed", "steps_per_update": 10_240, "max_kl": 0.001},
    "2016 rule, steps only": {**START, "adapt": "improvement(kl_delta=None)"},
    "2016 rule, KL only": {"steps_per_update": 20_480, "max_kl": 0.001, "adapt": "improvement(steps_delta=None)"},
    BOTH_OF_2016: {**START, "adapt": "improvement"},
    "2016 rule, both, margin": {**START, "adapt": "margin"},
    TRUST: {"adapt": "trust", "eval_every": 20_000},  # the runs of benchmark_1m.py
}
SEEDS = (0, 1, 2, 3, 4)  # that all of them are compared on


def with_best_fixed(env: str, *, quick: bool) -> dict[str, Settings]:
    """All methods, and the best fixed setting of the task; a quick try has not found it, and takes any."""
    best = {"adapt": "fixed", "steps_per_update": 1_024, "max_kl": 0.01} if quick else best_fixed(env)
    return {**METHODS, BEST_FIXED: best}
