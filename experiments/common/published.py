"""Published results at one million steps that ours are held against."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

TABLE = Path(__file__).parent.parent / "reference" / "onpolicy_1m_published.csv"


def published() -> Mapping[str, Mapping[str, str]]:
    """A row for each task without its version: `tianshou_ppo_mean` and the like (10 seeds), `zoo_...` (one agent)."""
    with TABLE.open() as file:
        return {row["env"]: row for row in csv.DictReader(file)}
