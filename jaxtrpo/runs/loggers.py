"""Other programs that are told the metrics of a run while it trains: TensorBoard and Weights & Biases."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from jaxtrpo.runs.directory import TENSORBOARD, WANDB_FILE
from jaxtrpo.runs.metrics import Row

STEP = "env_steps"  # what both draw against


class Follower(Protocol):
    """Is told rows of metrics."""

    def add(self, rows: Sequence[Row]) -> None:
        """Takes the rows of the last updates."""
        ...

    def close(self) -> None:
        """Ends it; what it was told is safe afterwards."""
        ...


class TensorBoard:
    """Event files in the run's directory, for `tensorboard --logdir`."""

    def __init__(self, directory: Path, last: Row | None):
        """Goes on after the last row, whatever was told of updates beyond it.

        Raises:
          ModuleNotFoundError: tensorboardX is not installed.
        """
        from tensorboardX import SummaryWriter

        then = None if last is None else int(last[STEP] or 0) + 1
        unlike_others = f".{time.time_ns()}"  # the name has whole seconds only, and a file of that name would be lost
        self._writer = SummaryWriter(
            str(directory / TENSORBOARD), purge_step=then, flush_secs=10, filename_suffix=unlike_others
        )

    def add(self, rows: Sequence[Row]) -> None:
        """As `Follower.add`."""
        for row in rows:
            for name, value in _numbers(row).items():
                self._writer.add_scalar(name, value, int(row[STEP] or 0))

    def close(self) -> None:
        """As `Follower.close`."""
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases; whether it is online is said by its own settings, such as WANDB_MODE."""

    def __init__(self, project: str, directory: Path | None, name: str, config: Mapping[str, Any]):
        """Begins a run, or goes on with the one that the directory names.

        Raises:
          ModuleNotFoundError: wandb is not installed.
        """
        import wandb

        note = None if directory is None else directory / WANDB_FILE
        known = note.read_text().strip() if note is not None and note.exists() else None
        self._run = wandb.init(project=project, id=known, resume="allow", name=name, config=dict(config), dir=directory)
        self._run.define_metric("*", step_metric=STEP)
        if note is not None:
            note.write_text(f"{self._run.id}\n")

    def add(self, rows: Sequence[Row]) -> None:
        """As `Follower.add`."""
        for row in rows:
            self._run.log(_numbers(row))

    def close(self) -> None:
        """As `Follower.close`."""
        self._run.finish()


def _numbers(row: Row) -> dict[str, float]:
    """What is no blank."""
    return {name: value for name, value in row.items() if value is not None and value == value}
