"""What a run writes to its directory during training: metrics, checkpoints and snapshots."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxtrpo.runs.directory import METRICS_FILE, clear, writing
from jaxtrpo.runs.metrics import Metrics, Row
from jaxtrpo.runs.snapshots import Snapshots


class Saving(NamedTuple):
    """When a run writes checkpoints and snapshots."""

    checkpoint_seconds: float = 60.0  # between checkpoints
    keep_best: bool = False  # snapshot of the state with the best evaluation
    keep_every: int = 0  # environment steps between snapshots; 0 for none


class Output:
    """Writes metrics, checkpoints and snapshots. Without a directory it only keeps metrics in memory."""

    def __init__(
        self,
        directory: Path | None,
        saving: Saving,
        columns: Mapping[str, np.ndarray],
        write: Callable[[Path, Metrics], None],
        *,
        resumed: bool = False,
        outdated: bool = False,
    ):
        """Starts the output of a new run, or continues that of a resumed one. Saves a first checkpoint of a new run.

        Args:
          directory: directory of the run, locked by `hold`; None writes nothing.
          saving: when to write checkpoints and snapshots.
          columns: metrics of the checkpoint that is resumed; empty for a new run.
          write: (directory, metrics) -> None writes the current state.
          resumed: whether the directory holds the run that goes on, perhaps from before its first update.
          outdated: whether the directory is to be written anew, because other settings of a resumed run change what it
            holds.

        Raises:
          OutputError: the directory cannot be written to. All methods may raise it.
        """
        self._directory, self._saving, self._write = directory, saving, write
        with self._writing():
            if directory is not None:
                clear(directory, keep_run=resumed)
                if not columns:
                    (directory / METRICS_FILE).unlink(missing_ok=True)  # of updates that no checkpoint holds
            self.metrics = Metrics(directory and directory / METRICS_FILE, columns)
            self._snapshots = directory and Snapshots(
                directory, columns, best=saving.keep_best, every=saving.keep_every
            )
        self._saved, self._is_due = None if outdated else len(self.metrics) or None, False
        self._save_at = 0.0
        self.save()

    @property
    def last(self) -> Row | None:
        """Metrics of the last update; None before the first."""
        return self.metrics.row(-1) if len(self.metrics) else None

    def add(self, rows: Sequence[Row]) -> None:
        """Writes the metrics of the latest updates. Call it before their state becomes the current one."""
        with self._writing():
            self.metrics.add(*rows)

    def wants(self, number: int) -> bool:
        """Whether a checkpoint or snapshot of the current state is due, which the last `number` rows led to."""
        self._is_due = self._directory is not None and time.monotonic() >= self._save_at
        snapshot_is_due = self._snapshots is not None and self._snapshots.wants(
            self._steps_before(number), self.metrics.row(-1)
        )
        return self._is_due or snapshot_is_due

    def keep(self, number: int) -> None:
        """Writes the snapshot and the checkpoint that are due; the latter is decided by `wants`."""
        if self._snapshots is not None:
            with self._writing():
                self._snapshots.offer(
                    self._steps_before(number), self.metrics.row(-1), lambda place: self._write(place, self.metrics)
                )
        if self._is_due:
            self.save()

    def _steps_before(self, number: int) -> int:
        return int(self.metrics.row(-number - 1)["env_steps"] or 0) if len(self.metrics) > number else 0

    def save(self) -> None:
        """Saves a checkpoint of the current state, unless it is saved already."""
        if self._directory is not None and self._saved != len(self.metrics):
            with self._writing():
                self._write(self._directory, self.metrics)
            self._saved = len(self.metrics)
        self._save_at = time.monotonic() + self._saving.checkpoint_seconds

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._directory is None else writing(self._directory)
