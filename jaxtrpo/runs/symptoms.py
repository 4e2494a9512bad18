"""Warnings about environments and learning, derived from the metrics of a run and shown once during training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from jaxtrpo.runs.metrics import Row

MANY_INVALID = 0.01  # fraction of a run's steps above which a warning is shown
UPDATES_TO_JUDGE, STEPS_TO_JUDGE = 3, 1_000  # minimum of both
EPISODES_TO_JUDGE = 50


class Symptom(Protocol):
    """Detector of one problem."""

    def note(self, rows: Iterable[Row]) -> str | None:
        """Takes the metrics of further updates and returns a warning if the problem has appeared.

        Args:
          rows: rows of metrics; a row before the first update lacks most columns.
        """
        ...


def symptoms(
    *, invalid_is_broken: bool, logged: Sequence[str] = (), adapted: Mapping[str, str] | None = None
) -> list[Symptom]:
    """Returns the detectors for a run.

    Args:
      invalid_is_broken: whether invalid steps always mean a broken simulation.
      logged: names of the entries of `info` that are columns of metrics.
      adapted: settings that a rule may change, and the spec string of the rule.
    """
    invalid = [InvalidSteps()] if invalid_is_broken else []
    broken = [BrokenSetting(name, rule) for name, rule in (adapted or {}).items()]
    return [RewardsOutOfRange(), NoGradient(), NothingAccepted(), *invalid, *map(NeverLogged, logged), *broken]


def notes(looked_for: Sequence[Symptom], rows: Sequence[Row]) -> list[str]:
    """Returns the warnings after further updates."""
    found = [symptom.note(rows) for symptom in looked_for]
    return [note for note in found if note is not None]


class InvalidSteps:
    """Warns once if many steps of a run are invalid and cannot be learned from."""

    def __init__(self) -> None:
        self._updates, self._steps, self._invalid, self._told = 0, 0.0, 0.0, False

    def note(self, rows: Iterable[Row]) -> str | None:
        """See `Symptom.note`."""
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
            f"{self._invalid / self._steps:.0%} of the steps so far are invalid because the simulation diverged "
            "(invalid_steps); try a shorter time step, smaller actions or other initial states"
        )


class NeverLogged:
    """Warns once if no episode has provided an entry of `info` that is to be logged; its name may be misspelt."""

    def __init__(self, name: str) -> None:
        """Watches the column of this name."""
        self._name, self._episodes, self._over = name, 0, False

    def note(self, rows: Iterable[Row]) -> str | None:
        """See `Symptom.note`."""
        for row in rows:
            value = row.get(self._name)
            self._over = self._over or (value is not None and math.isfinite(value))
            self._episodes += int(row.get("episodes") or 0)
        if self._over or self._episodes < EPISODES_TO_JUDGE:
            return None
        self._over = True
        episodes = EPISODES_TO_JUDGE  # the same in all of many runs, which then show it once
        return f"log_info: none of the first {episodes} episodes ended with a number named {self._name} in its info"


class BrokenSetting:
    """Warns once if a rule has set a setting to NaN or infinity."""

    def __init__(self, name: str, rule: str) -> None:
        """Watches the column of this name."""
        self._name, self._rule, self._told = name, rule, False

    def note(self, rows: Iterable[Row]) -> str | None:
        """See `Symptom.note`."""
        values = [row.get(self._name) for row in rows]
        broken = [value for value in values if value is not None and not math.isfinite(value)]
        if self._told or not broken:
            return None
        self._told = True
        return f"adapt={self._rule} has set {self._name} to {broken[0]:g}, with which nothing can be learned"


class _Lasting:
    """Warns once if several updates in a row have a problem."""

    updates_to_judge = UPDATES_TO_JUDGE

    def __init__(self) -> None:
        self._updates, self._told = 0, False

    def note(self, rows: Iterable[Row]) -> str | None:
        """See `Symptom.note`."""
        row = None
        for row in rows:
            self._updates = self._updates + 1 if self._affects(row) else 0
        if self._told or row is None or self._updates < self.updates_to_judge:
            return None
        self._told = True
        return self._warning(row)

    def _affects(self, row: Row) -> bool:
        """Returns whether an update has the problem."""
        raise NotImplementedError

    def _warning(self, row: Row) -> str:
        """Returns the warning after an update that has it."""
        raise NotImplementedError


# Mean return whose rewards have squares below the smallest float32 number.
MOST_THAT_UNDERFLOWS = 1e-15


class RewardsOutOfRange(_Lasting):
    """Warns once if squares of advantages overflow or underflow in float32."""

    def _affects(self, row: Row) -> bool:
        spread, mean = row.get("advantage_std"), row.get("mean_return")
        if spread is None or not math.isfinite(spread):
            return spread is not None
        # Where rewards are of a usual size, all of them are equal, such as those of a task that is solved.
        return spread == 0 and _is_finite_and_nonzero(mean) and abs(mean or 0) < MOST_THAT_UNDERFLOWS

    def _warning(self, row: Row) -> str:
        return (
            f"rewards are too large or too small for float32 (advantage_std is {row['advantage_std']:g}), which "
            "prevents learning; scale them, for example to about 1 per step"
        )


class NoGradient(_Lasting):
    """Warns once if the gradient of the policy is not finite, from which nothing is learned."""

    def _affects(self, row: Row) -> bool:
        norm, spread = row.get("gradient_norm"), row.get("advantage_std")
        return norm is not None and not math.isfinite(norm) and (spread is None or math.isfinite(spread))

    def _warning(self, row: Row) -> str:
        return (
            f"the gradient of the policy is not finite (gradient_norm is {row['gradient_norm']:g}), which prevents "
            "learning; look for divisions by zero and logarithms of 0 in a surrogate or network of your own, or lower "
            "the learning rate"
        )


class NothingAccepted(_Lasting):
    """Warns once if step after step of the policy is discarded, although there is something to learn."""

    updates_to_judge = 10  # a line search that fails now and then is usual

    def _affects(self, row: Row) -> bool:
        learnable = (row.get(name) for name in ("advantage_std", "gradient_norm"))
        return row.get("accepted") == 0 and all(value is None or _is_finite_and_nonzero(value) for value in learnable)

    def _warning(self, row: Row) -> str:
        return (
            f"none of the last {self.updates_to_judge} updates has changed the policy (accepted is 0); if a surrogate, "
            "network or algorithm of your own is used, look for NaN in what it returns"
        )


def _is_finite_and_nonzero(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value != 0
