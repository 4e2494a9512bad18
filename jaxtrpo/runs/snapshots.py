"""Snapshots of a run: the state with the best evaluation, and states at regular intervals."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from jaxtrpo.runs.directory import BEST, METRICS_FILE, SNAPSHOT, link_whole, write_directory
from jaxtrpo.runs.metrics import Row


class Snapshots:
    """Writes snapshots. Each is a directory like that of a run, and can be used in its place.

    `step-0000200704` is the state after 200,704 environment steps; `best` links to the best one, `best-0000200704`.
    """

    def __init__(self, directory: Path, columns: Mapping[str, np.ndarray], *, best: bool, every: int):
        """Prepares for snapshots; a resumed run continues from its best one.

        Args:
          directory: directory of the run.
          columns: metrics of a resumed run so far; empty for a new run.
          best: keep a snapshot of the state with the best evaluation so far.
          every: environment steps between regular snapshots; 0 for none.
        """
        self.directory, self._every = directory, every
        self._highest = _return_of(directory / BEST, columns) if best else math.inf

    def wants(self, steps_before: int, row: Row) -> bool:
        """Whether `offer` would write a snapshot."""
        return self._is_due(steps_before, row) or self._is_best(row)

    def _is_due(self, steps_before: int, row: Row) -> bool:
        return bool(self._every) and int(row["env_steps"] or 0) // self._every > steps_before // self._every

    def _is_best(self, row: Row) -> bool:
        value = row["eval_return"]
        return value is not None and value > self._highest

    def offer(self, steps_before: int, row: Row, write: Callable[[Path], None]) -> None:
        """Writes a snapshot of the current state if one is due or if it is the best so far.

        Args:
          steps_before: environment steps at the previous offer.
          row: metrics of the last update.
          write: writes the files of the state into a directory.
        """
        steps = int(row["env_steps"] or 0)
        if self._is_due(steps_before, row):
            write_directory(self.directory / f"step-{steps:010d}", write)
        if self._is_best(row):
            place = self.directory / f"best-{steps:010d}"
            write_directory(place, write)
            link_whole(self.directory / BEST, place.name)
            self._highest = float(row["eval_return"] or 0)
            for old in self.directory.glob("best-*"):
                # One that was resumed is a run of its own.
                if SNAPSHOT.fullmatch(old.name) and old != place and not (old / METRICS_FILE).exists():
                    shutil.rmtree(old)


def _return_of(best: Path, columns: Mapping[str, np.ndarray]) -> float:
    """Mean return of the evaluation of the best snapshot, whose own files go on if it is resumed."""
    name = best.readlink().name if best.is_symlink() else ""
    if not (columns and SNAPSHOT.fullmatch(name) and best.is_dir()):
        return -math.inf
    steps = int(name.rpartition("-")[-1])
    return float(np.max(columns["eval_return"][columns["env_steps"] == steps], initial=-math.inf))
