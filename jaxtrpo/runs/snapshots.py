"""States of a run that are kept beside the newest one: the best by evaluation, and one every so often."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

from jaxtrpo.runs.checkpoint import load_checkpoint
from jaxtrpo.runs.directory import BEST, KEPT, link_whole, write_directory
from jaxtrpo.runs.metrics import Row


class Kept:
    """Decides which states stay. Each is a directory like that of a run, so that whatever takes one takes it too.

    `step-0000200704` is the state after so many environment steps, `best` a link to the best one, `best-0000200704`.
    """

    def __init__(self, directory: Path, *, best: bool, every: int):
        """Goes on where an earlier run ended.

        Args:
          directory: of the run.
          best: keep the state whose evaluation was best so far.
          every: environment steps between those that stay; 0 for none.
        """
        self.directory, self._every = directory, every
        self._highest = _return_of(directory / BEST) if best else math.inf

    def wants(self, steps_before: int, row: Row) -> bool:
        """Whether `offer` would keep a state."""
        return self._is_time(steps_before, row) or self._is_best(row)

    def _is_time(self, steps_before: int, row: Row) -> bool:
        return bool(self._every) and int(row["env_steps"] or 0) // self._every > steps_before // self._every

    def _is_best(self, row: Row) -> bool:
        value = row["eval_return"]
        return value is not None and value > self._highest

    def offer(self, steps_before: int, row: Row, write: Callable[[Path], None]) -> None:
        """Keeps a state if it is time to, or if it is the best.

        Args:
          steps_before: environment steps at the last offer.
          row: metrics of its update.
          write: puts its files into a directory.
        """
        steps = int(row["env_steps"] or 0)
        if self._is_time(steps_before, row):
            write_directory(self.directory / f"step-{steps:010d}", write)
        if self._is_best(row):
            place = self.directory / f"best-{steps:010d}"
            write_directory(place, write)
            link_whole(self.directory / BEST, place.name)
            self._highest = float(row["eval_return"] or 0)
            for old in self.directory.glob("best-*"):
                if KEPT.fullmatch(old.name) and old != place:
                    shutil.rmtree(old)


def _return_of(best: Path) -> float:
    """Of the evaluation for which it was kept."""
    try:
        return float(load_checkpoint(best).metrics["eval_return"][-1])
    except (FileNotFoundError, NotADirectoryError, ValueError):  # none yet, or damaged
        return -math.inf
