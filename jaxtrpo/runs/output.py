"""All that a run leaves in its directory while it trains."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxtrpo.runs.directory import METRICS_FILE, clear, writing
from jaxtrpo.runs.metrics import Metrics, Row
from jaxtrpo.runs.snapshots import Kept


class Saving(NamedTuple):
    """When a run that has a directory writes what it is."""

    checkpoint_seconds: float = 60.0  # between two checkpoints
    keep_best: bool = False  # the state with the best evaluation stays
    keep_every: int = 0  # environment steps between states that stay; 0 for none


class Output:
    """Metrics, checkpoints and states that are kept. Without a directory there are only metrics, in memory."""

    def __init__(
        self,
        directory: Path | None,
        saving: Saving,
        columns: Mapping[str, np.ndarray],
        write: Callable[[Path, Metrics], None],
    ):
        """Begins, or goes on where the metrics end.

        Args:
          directory: of the run, which is held.
          saving: when what is written.
          columns: metrics so far; those of the checkpoint that the directory has if there are any.
          write: (directory, metrics) puts the present state there.

        Raises:
          OutputError: the directory cannot be written to; so do all methods.
        """
        self._directory, self._saving, self._write = directory, saving, write
        with self._writing():
            if directory is not None:
                clear(directory, keep_run=bool(columns))
            self.metrics = Metrics(directory and directory / METRICS_FILE, columns)
            self._kept = directory and Kept(directory, best=saving.keep_best, every=saving.keep_every)
        self._saved, self._is_due = len(self.metrics.rows) or None, False
        self._save_at = 0.0
        self.save()

    @property
    def last(self) -> Row | None:
        """Row of the last update."""
        return self.metrics.rows[-1] if self.metrics.rows else None

    def add(self, rows: Sequence[Row]) -> None:
        """Writes what the last updates showed; the state that they led to is the present one only afterwards."""
        with self._writing():
            self.metrics.add(*rows)

    def wants(self, number: int) -> bool:
        """Whether it is time to write the present state, to which the last `number` rows led."""
        self._is_due = self._directory is not None and time.monotonic() >= self._save_at
        kept = self._kept is not None and self._kept.wants(self._steps_before(number), self.metrics.rows[-1])
        return self._is_due or kept

    def keep(self, number: int) -> None:
        """Keeps the present state, and makes it a checkpoint, where `wants` has found that it is time to."""
        if self._kept is not None:
            with self._writing():
                self._kept.offer(
                    self._steps_before(number), self.metrics.rows[-1], lambda place: self._write(place, self.metrics)
                )
        if self._is_due:
            self.save()

    def _steps_before(self, number: int) -> int:
        before = self.metrics.rows[:-number]
        return int(before[-1]["env_steps"] or 0) if before else 0

    def save(self) -> None:
        """Makes the present state a checkpoint if there is none of it."""
        if self._directory is not None and self._saved != len(self.metrics.rows):
            with self._writing():
                self._write(self._directory, self.metrics)
            self._saved = len(self.metrics.rows)
        self._save_at = time.monotonic() + self._saving.checkpoint_seconds

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._directory is None else writing(self._directory)
