"""Progress of training on standard error: a bar in a terminal or a notebook, otherwise a line every few seconds."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, TextIO, TypeVar

from tqdm import tqdm

from jaxtrpo.runs.metrics import Row

T = TypeVar("T")
SECONDS_BETWEEN_LINES = 3.0
SECONDS_BETWEEN_TICKS = 1.0
NOTHING_DONE: Row = {"update": 0, "env_steps": 0, "wall_seconds": 0.0}


class Progress:
    """Shows the latest metrics on standard error."""

    def __init__(
        self,
        total: int,
        last: Row = NOTHING_DONE,
        *,
        enabled: bool = True,
        best: float = -math.inf,
        unit: str = "steps",
    ):
        """Starts at 0, or where a resumed run is.

        Args:
          total: environment steps of the whole run, or another number to reach.
          last: last row of metrics of a resumed run.
          enabled: False shows nothing.
          best: best evaluation so far of a resumed run.
          unit: what `total` counts, of which the column `env_steps` says how much is done.
        """
        self._show: _Bar | _Lines | None = None
        self._best, self._lock = best, threading.RLock()
        self._counted, self._began = 0, time.monotonic()
        if enabled:
            bar = _bar_class()
            with contextlib.suppress(OSError):  # see `_do`
                self._show = _Lines(total, sys.stderr, last, unit=unit) if bar is None else _Bar(bar, total, last, unit)
        self._closed = threading.Event()
        if enabled:
            threading.Thread(target=self._tick, daemon=True).start()

    def _tick(self) -> None:
        while not self._closed.wait(SECONDS_BETWEEN_TICKS):
            with self._lock:
                if not self._closed.is_set():
                    self._do(lambda show: show.tick())

    def _do(self, what: Callable[[_Bar | _Lines], None]) -> None:
        """Shows something, or nothing more once that fails: work does not depend on who reads of it."""
        with self._lock:
            if self._show is not None:
                try:
                    what(self._show)
                except OSError:  # the reader has gone, or the disk is full
                    self._show = None

    def update(self, row: Row) -> None:
        """Shows the metrics of an update, and its evaluation, if there is one.

        Args:
          row: metrics, at least env_steps and wall_seconds.
        """
        self._do(lambda show: show.update(row))
        value = row.get("eval_return")
        if value is not None and not math.isnan(value):
            better = ", the best so far" if -math.inf < self._best < value else ""
            self._best = max(self._best, value)
            self.note(f"evaluation after {row['env_steps']:,} steps: return {_figure(value)}{better}")

    def expect(self, total: int) -> None:
        """Changes the number to reach."""
        self._do(lambda show: show.expect(total))

    def status(self, text: str) -> None:
        """Shows what takes time until the next update, such as "compiling"."""
        self._do(lambda show: show.status(text))

    def note(self, text: str, file: TextIO | None = None) -> None:
        """Prints a message, on standard error if not on another file, without disturbing the bar."""
        self._do(lambda show: show.note(text, file))

    def count(self, parts: Iterable[T]) -> Iterator[T]:
        """Yields the same parts, such as frames, and shows how many there have been; may be called several times."""
        for part in parts:
            yield part
            self._counted += 1
            self.update({"env_steps": self._counted, "wall_seconds": time.monotonic() - self._began})

    def close(self) -> None:
        """Shows the last update and stops."""
        self._closed.set()
        self._do(lambda show: show.close())

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Speed:
    """Average speed after the first update, which takes longer because it is compiled."""

    def __init__(self) -> None:
        self._first: Row | None = None
        self.per_second = 0.0  # 0 if unknown

    def add(self, row: Row) -> None:
        if self._first is None:
            self._first = row
        done, seconds = (float(row[k] or 0) - float(self._first[k] or 0) for k in ("env_steps", "wall_seconds"))
        self.per_second = done / seconds if seconds > 0 else 0.0


def _bar_class() -> Any:
    """Returns the kind of bar that can be shown; None if standard error is a file."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if hasattr(shell, "kernel"):
        try:
            import ipywidgets  # noqa: F401  # pyright: ignore[reportMissingImports]
            from tqdm.notebook import tqdm as notebook_tqdm
        except ImportError:
            return _timed(tqdm)
        return _timed(notebook_tqdm)
    return _timed(tqdm) if sys.stderr.isatty() else None


def _timed(base: Any) -> Any:
    """Returns a kind of bar whose speed and remaining time follow from `per_second`, not from the time of compiling."""

    class Bar(base):
        per_second = 0.0

        @property
        def format_dict(self) -> dict[str, Any]:
            return {**super().format_dict, "rate": self.per_second}  # 0 is shown as "?"

    return Bar


class _Bar:
    def __init__(self, kind: Any, total: int, last: Row, unit: str):
        self._total, self._speed = total, _Speed()
        done = min(last["env_steps"] or 0, total)
        self._bar = kind(
            total=total, initial=done, unit=f" {unit}", unit_scale=True, dynamic_ncols=True, file=sys.stderr
        )

    def expect(self, total: int) -> None:
        self._total = self._bar.total = total

    def update(self, row: Row) -> None:
        self._speed.add(row)
        self._bar.per_second = self._speed.per_second
        self._bar.set_description_str("", refresh=False)
        self._bar.set_postfix_str(", ".join(_figures(row)), refresh=False)
        # The last update may exceed the total, at which tqdm would drop the bar.
        self._bar.update(min(row["env_steps"] or 0, self._total) - self._bar.n)

    def status(self, text: str) -> None:
        self._bar.set_description_str(text)

    def tick(self) -> None:
        self._bar.refresh()

    def note(self, text: str, file: TextIO | None = None) -> None:
        self._bar.write(text, file=file or sys.stderr)

    def close(self) -> None:
        self._bar.refresh()
        self._bar.close()


class _Lines:
    """Prints the first update, one about every three seconds, the last, and what takes long."""

    def __init__(
        self,
        total: int,
        file: TextIO,
        last: Row = NOTHING_DONE,
        clock: Callable[[], float] = time.monotonic,
        unit: str = "steps",
    ):
        self._total, self._file, self._clock, self._unit = total, file, clock, unit
        self._printed_at = -math.inf
        self._printed = last
        self._last, self._speed = last, _Speed()
        self._status, self._since, self._patience = "waiting for the next update", clock(), SECONDS_BETWEEN_LINES
        self._told = set[str]()

    def expect(self, total: int) -> None:
        self._total = total

    def update(self, row: Row) -> None:
        self._last = row
        self._speed.add(row)
        self._begin("waiting for the next update")
        if self._clock() - self._printed_at >= SECONDS_BETWEEN_LINES:
            self._print(row)

    def _begin(self, status: str) -> None:
        self._status, self._since, self._patience = status, self._clock(), SECONDS_BETWEEN_LINES

    def _print(self, row: Row, *, goes_on: bool = True) -> None:
        steps, seconds = (float(row[k] or 0) - float(self._printed[k] or 0) for k in ("env_steps", "wall_seconds"))
        speed = steps / seconds if seconds > 0 else None
        done = row["env_steps"] or 0
        number = done if isinstance(done, int) else round(done, 1)
        parts = [
            *([f"update {row['update']}"] if "update" in row else []),
            f"{number:,} {self._unit} ({min(100, 100 * done / self._total):.0f}%)",
            *_figures(row),
            *([f"{_figure(speed)} steps/s"] if self._unit == "steps" else []),
        ]
        if goes_on and self._speed.per_second > 0 and done < self._total:
            parts.append(f"{_clock_time((self._total - done) / self._speed.per_second)} left")
        print("  ".join(parts), file=self._file, flush=True)
        self._printed, self._printed_at = row, self._clock()

    def status(self, text: str) -> None:
        self._begin(text)
        if text not in self._told:
            self._told.add(text)
            self.note(text)

    def tick(self) -> None:
        """Says that something takes long, after 3, 6, 12, ... seconds."""
        waited = self._clock() - self._since
        if waited >= self._patience:
            self._patience *= 2
            self.note(f"{self._status} ({waited:.0f} s)")

    def note(self, text: str, file: TextIO | None = None) -> None:
        print(text, file=file or self._file, flush=True)

    def close(self) -> None:
        if self._last is not self._printed:
            self._print(self._last, goes_on=False)


def _figures(row: Row) -> list[str]:
    """Formats the metrics to show; not every algorithm has a kl."""
    shown = {"return_100": "return_100", "last": "mean_return", "kl": "kl"}
    return [f"{name} {_figure(row[column])}" for name, column in shown.items() if column in row]


def _figure(value: float | int | None) -> str:
    """Formats a number compactly, and a blank as "-"."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _clock_time(seconds: float) -> str:
    """Formats a duration as hours, minutes and seconds."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
