"""Loggers, which receive the metrics of a run while it trains: TensorBoard and Weights & Biases."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from jaxtrpo.config.messages import one_line
from jaxtrpo.runs.directory import TENSORBOARD, WANDB_FILE
from jaxtrpo.runs.metrics import Row

STEP = "env_steps"  # horizontal axis of both
ROLLOUT = ("episodes", "mean_return", "return_100", "mean_length", "invalid_steps")
TIME = ("update", STEP, "wall_seconds", "collect_seconds", "learn_seconds")
MOST_IN_TAG, MOST_IN_GROUP = 64, 128  # characters that Weights & Biases accepts


class Logger(Protocol):
    """Receives rows of metrics."""

    def add(self, rows: Sequence[Row]) -> None:
        """Logs the rows of the latest updates."""
        ...

    def close(self) -> None:
        """Flushes everything that was logged and closes the logger."""
        ...


def tag_of(column: str) -> str:
    """Returns the tag of a column in TensorBoard, which groups tags as those of Stable-Baselines3 are."""
    if column.startswith("eval_"):
        return f"eval/{column}"
    return f"{'rollout' if column in ROLLOUT else 'time' if column in TIME else 'train'}/{column}"


class TensorBoard:
    """Event files in the run's directory, for `tensorboard --logdir`."""

    def __init__(self, directory: Path, last: Row | None):
        """Opens a new event file; events after the last row, which a resumed run repeats, are purged.

        Args:
          directory: directory of the run.
          last: last row of the metrics of a resumed run; None before the first update, also of a resumed run.

        Raises:
          ModuleNotFoundError: tensorboardX is not installed.
        """
        from tensorboardX import SummaryWriter

        purge_step = 1 + (0 if last is None else int(last[STEP] or 0))
        # File names contain whole seconds only; without a suffix, two runs within a second would share a file.
        suffix = f".{time.time_ns()}"
        self._writer = SummaryWriter(
            str(directory / TENSORBOARD), purge_step=purge_step, flush_secs=10, filename_suffix=suffix
        )

    def add(self, rows: Sequence[Row]) -> None:
        """See `Logger.add`."""
        for row in rows:
            for name, value in _numbers(row).items():
                self._writer.add_scalar(tag_of(name), value, int(row[STEP] or 0))

    def close(self) -> None:
        """See `Logger.close`."""
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, configured by its own environment variables such as WANDB_MODE."""

    def __init__(self, project: str, directory: Path | None, name: str, config: Mapping[str, Any]):
        """Starts a Weights & Biases run, or resumes the one whose id is stored in the directory.

        Args:
          project: project of Weights & Biases.
          directory: directory of the run, where the id is stored; None if the run has none.
          name: display name.
          config: settings of the run, with the name of its environment as `env`. Runs of one environment and algorithm
            form a group, unless WANDB_RUN_GROUP names another; environment and algorithm are also tags, in addition to
            those of WANDB_TAGS.

        Raises:
          ModuleNotFoundError: wandb is not installed.
        """
        import wandb

        id_file = None if directory is None else directory / WANDB_FILE
        run_id = id_file.read_text().strip() if id_file is not None and id_file.exists() else None
        env, algorithm = str(config["env"]), str(config["algorithm"])
        tags = [*filter(None, os.environ.get("WANDB_TAGS", "").split(",")), env, algorithm.partition("(")[0]]
        self._run = wandb.init(
            project=project,
            id=run_id,
            resume="allow",
            name=name,
            group=os.environ.get("WANDB_RUN_GROUP") or one_line(f"{env}, {algorithm}", MOST_IN_GROUP),
            tags=[one_line(tag, MOST_IN_TAG) for tag in dict.fromkeys(tags)],
            config=dict(config),
            dir=directory,
            reinit="create_new",  # other runs of this process, such as those of other seeds, go on
        )
        self._run.define_metric("*", step_metric=STEP)
        if id_file is not None:
            id_file.write_text(f"{self._run.id}\n")

    def add(self, rows: Sequence[Row]) -> None:
        """See `Logger.add`."""
        for row in rows:
            self._run.log(_numbers(row))

    def close(self) -> None:
        """See `Logger.close`."""
        self._run.finish()


def _numbers(row: Row) -> dict[str, float]:
    """Returns the values that are neither None nor NaN."""
    return {name: value for name, value in row.items() if value is not None and value == value}
