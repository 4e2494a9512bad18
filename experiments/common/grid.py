"""The fixed settings that are swept: those of the 2016 sweeps, in every combination."""

from __future__ import annotations

import functools
import itertools

import numpy as np

from common.comparison import Settings
from common.runs import load_all
from common.statistics import area
from common.store import Job

STEPS_PER_UPDATE = (1_024, 5_120, 20_480)  # 1,000, 5,000 and 20,000 in 2016; here whole segments
MAX_KL = (0.001, 0.005, 0.01)
TASKS = ("Reacher-v5", "Swimmer-v5", "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
SEEDS = (0, 1, 2)


def label(settings: Settings) -> str:
    """Such as 1,024 steps, max KL 0.01."""
    return f"{settings['steps_per_update']:,} steps, max KL {settings['max_kl']}"


def combinations() -> dict[str, Settings]:
    """All settings, by label."""
    found = [
        {"adapt": "fixed", "steps_per_update": steps, "max_kl": kl, "num_envs": 16}
        for steps, kl in itertools.product(STEPS_PER_UPDATE, MAX_KL)
    ]
    return {label(settings): settings for settings in found}


@functools.cache
def best_fixed(env: str) -> Settings:
    """The combination with the largest mean area over the seeds of the sweeps, which have to be done."""

    def mean_area(settings: Settings) -> float:
        curves = load_all((Job(env, seed, settings) for seed in SEEDS), made_by="max_kl.py")
        return float(np.mean([area(curve) for curve in curves]))

    return max(combinations().values(), key=mean_area)
