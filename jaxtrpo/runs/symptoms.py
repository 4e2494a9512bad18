"""What the metrics of a run say is wrong with its environment: a sentence each, said once while it trains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

from jaxtrpo.runs.metrics import Row

MANY_INVALID = 0.01  # share of a run's steps, which have to be
UPDATES_TO_JUDGE, STEPS_TO_JUDGE = 3, 1_000  # so many at least


class Symptom(Protocol):
    """One thing that may be wrong."""

    def note(self, rows: Iterable[Row]) -> str | None:
        """What to say after further updates, if there is something to say.

        Args:
          rows: of metrics; the row of no update has none of their columns.
        """
        ...


def symptoms(*, invalid_is_broken: bool) -> list[Symptom]:
    """All that are looked for in a run.

    Args:
      invalid_is_broken: whether steps are invalid only where a simulation broke.
    """
    return [RewardsOutOfRange(), *([InvalidSteps()] if invalid_is_broken else [])]


def notes(looked_for: Sequence[Symptom], rows: Sequence[Row]) -> list[str]:
    """What there is to say after further updates."""
    said = [symptom.note(rows) for symptom in looked_for]
    return [note for note in said if note is not None]


class InvalidSteps:
    """Notices, once, that many steps of a run teach nothing."""

    def __init__(self) -> None:
        self._updates, self._steps, self._invalid, self._told = 0, 0.0, 0.0, False

    def note(self, rows: Iterable[Row]) -> str | None:
        """As `Symptom`."""
        for row in rows:
            if "invalid_steps" in row:
                self._updates += 1
                self._steps += float(row["steps_per_update"] or 0)
                self._invalid += float(row["invalid_steps"] or 0)
        enough = self._updates >= UPDATES_TO_JUDGE and self._steps >= STEPS_TO_JUDGE
        if self._told or not enough or self._invalid <= MANY_INVALID * self._steps:
            return None
        self._told = True
        return (
            f"{self._invalid / self._steps:.0%} of the steps so far teach nothing, since the simulation broke in them "
            "(invalid_steps): a shorter time step, smaller actions or other first states may keep it stable"
        )


class RewardsOutOfRange:
    """Notices, once, that the squares of advantages are beyond what 32-bit numbers hold."""

    def __init__(self) -> None:
        self._updates, self._told = 0, False

    def note(self, rows: Iterable[Row]) -> str | None:
        """As `Symptom`."""
        spread = None
        for row in rows:
            spread, mean = row.get("advantage_std"), row.get("mean_return")
            lost = spread is not None and (not math.isfinite(spread) or (spread == 0 and _is_something(mean)))
            self._updates = self._updates + 1 if lost else 0
        if self._told or spread is None or self._updates < UPDATES_TO_JUDGE:
            return None
        self._told = True
        return (
            f"rewards are too large or too small for 32-bit numbers (advantage_std is {spread:g}), which spoils "
            "learning: scale them, to about 1 a step for example"
        )


def _is_something(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value != 0
