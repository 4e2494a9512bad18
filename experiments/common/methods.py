"""The ways to adapt that are compared: the rules of 2016, `trust`, and fixed settings beside them."""

from __future__ import annotations

from common.comparison import Settings
from common.grid import best_fixed

START = {"steps_per_update": 1_024, "max_kl": 0.001}  # where the rules of 2016 start
TRUST, BOTH_OF_2016, BEST_FIXED = "trust", "2016 rule, both", "best fixed"
LARGE = {"max_kl": 0.001, "num_envs": 16}  # batches, of as many environments as the small ones
METHODS: dict[str, Settings] = {
    "fixed, as in 2016": {**LARGE, "adapt": "fixed", "steps_per_update": 10_240},
    "2016 rule, steps only": {**START, "adapt": "improvement(kl_delta=None)"},
    "2016 rule, KL only": {**LARGE, "steps_per_update": 20_480, "adapt": "improvement(steps_delta=None)"},
    BOTH_OF_2016: {**START, "adapt": "improvement"},
    "2016 rule, both, margin": {**START, "adapt": "margin"},
    TRUST: {"adapt": "trust", "eval_every": 20_000},  # the runs of benchmark_1m.py
}
SEEDS = (0, 1, 2, 3, 4)  # that all of them are compared on


def fixed_settings(env: str, *, quick: bool) -> Settings:
    """The best fixed setting of the task; a quick try has not found it, and takes any."""
    return {"adapt": "fixed", "steps_per_update": 1_024, "max_kl": 0.01} if quick else best_fixed(env)


def with_best_fixed(env: str, *, quick: bool) -> dict[str, Settings]:
    """All methods, and the best fixed setting of the task."""
    return {**METHODS, BEST_FIXED: fixed_settings(env, quick=quick)}
