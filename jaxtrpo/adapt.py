"""Rules that change hyperparameters between updates: pure functions of metrics, traced with the learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from jaxtyping import Array, PyTree

from jaxtrpo.types import Hyperparameters


class Rule(NamedTuple):
    """A way to adapt. What it remembers is in its state, so a run can be saved and gone on with.

    `update` sees the metrics of one update, by the names of the columns of metrics.csv; those of an update in which no
    episode finished are NaN.
    """

    init: Callable[[Hyperparameters], PyTree]
    update: Callable[[PyTree, Hyperparameters, Mapping[str, Array]], tuple[PyTree, Hyperparameters]]


def fixed() -> Rule:
    """Settings stay as they are."""
    return Rule(
        init=lambda hyperparameters: (), update=lambda state, hyperparameters, metrics: (state, hyperparameters)
    )
