"""Published results at one million steps that ours are held against."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

# TRPO of sb3-contrib, where it is the best that is known of an on-policy algorithm with usual settings.
SB3_TRPO = {"Hopper": 3372.0, "Walker2d": 4502.0, "Ant": 3554.0}
TABLE = Path(__file__).parent.parent / "reference" / "onpolicy_1m_published.csv"


def published() -> Mapping[str, Mapping[str, str]]:
    """A row for each task without its version: `tianshou_ppo_mean` and the like (10 seeds), `zoo_...` (one agent)."""
    with TABLE.open() as file:
        return {row["env"]: row for row in csv.DictReader(file)}
