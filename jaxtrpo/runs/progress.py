"""Progress of a training run: a bar in a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from tqdm import tqdm

from jaxtrpo.runs.metrics import Row

SECONDS_BETWEEN_LINES = 5.0
NOTHING_DONE: Row = {"update": 0, "env_steps": 0, "wall_seconds": 0.0}


class Progress:
    """Shows the latest metrics on standard error."""

    def __init__(self, total_steps: int, last: Row = NOTHING_DONE, *, enabled: bool = True):
        """Starts at 0 environment steps, or at those of a resumed run.

        Args:
          total_steps: environment steps of the whole run.
          last: last row of metrics of a resumed run.
          enabled: False shows nothing.
        """
        self._show: _Bar | _Lines | None = None
        if enabled:
            self._show = _Bar(total_steps, last) if sys.stderr.isatty() else _Lines(total_steps, sys.stderr, last)

    def update(self, row: Row) -> None:
        """Shows the metrics of an update.

        Args:
          row: metrics, at least update, env_steps, wall_seconds, mean_return and return_100.
        """
        if self._show is not None:
            self._show.update(row)

    def note(self, text: str) -> None:
        """Prints a message without disturbing the bar."""
        if self._show is not None:
            self._show.note(text)

    def close(self) -> None:
        """Shows the last update and stops."""
        if self._show is not None:
            self._show.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Bar:
    def __init__(self, total_steps: int, last: Row):
        self._total = total_steps
        done = min(int(last["env_steps"] or 0), total_steps)
        self._bar = tqdm(
            total=total_steps, initial=done, unit=" steps", unit_scale=True, dynamic_ncols=True, file=sys.stderr
        )

    def update(self, row: Row) -> None:
        self._bar.set_postfix_str(", ".join(_figures(row)), refresh=False)
        # The last update may exceed the total, at which tqdm would drop the bar.
        self._bar.update(min(int(row["env_steps"] or 0), self._total) - self._bar.n)

    def note(self, text: str) -> None:
        self._bar.write(text, file=sys.stderr)

    def close(self) -> None:
        self._bar.refresh()
        self._bar.close()


class _Lines:
    """Prints the first update, one about every five seconds, and the last."""

    def __init__(
        self,
        total_steps: int,
        file: TextIO,
        last: Row = NOTHING_DONE,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._total, self._file, self._clock = total_steps, file, clock
        self._printed_at = -math.inf
        self._printed = last
        self._last = last

    def update(self, row: Row) -> None:
        self._last = row
        if self._clock() - self._printed_at >= SECONDS_BETWEEN_LINES:
            self._print(row)

    def _print(self, row: Row) -> None:
        steps, seconds = (float(row[k] or 0) - float(self._printed[k] or 0) for k in ("env_steps", "wall_seconds"))
        speed = steps / seconds if seconds > 0 else None
        percent = min(100, 100 * (row["env_steps"] or 0) / self._total)
        print(
            f"update {row['update']}  {row['env_steps']:,} steps ({percent:.0f}%)  "
            f"{'  '.join(_figures(row))}  {_figure(speed)} steps/s",
            file=self._file,
            flush=True,
        )
        self._printed, self._printed_at = row, self._clock()

    def note(self, text: str) -> None:
        print(text, file=self._file, flush=True)

    def close(self) -> None:
        if self._last is not self._printed:
            self._print(self._last)


def _figures(row: Row) -> list[str]:
    """Formats the metrics to show; not every algorithm has a kl."""
    shown = {"return_100": "return_100", "last": "mean_return", "kl": "kl"}
    return [f"{name} {_figure(row[column])}" for name, column in shown.items() if column in row]


def _figure(value: float | int | None) -> str:
    """Formats a number compactly, and a blank as "-"."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
