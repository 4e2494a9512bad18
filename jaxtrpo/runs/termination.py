"""Handling of SIGINT and of SIGTERM, which schedulers send before they kill a process."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

EXIT_CODE = 128 + signal.SIGTERM


class Termination(KeyboardInterrupt):
    """SIGTERM was received; handled like an interrupt."""


class SecondInterrupt(KeyboardInterrupt):
    """A second SIGINT, which ends this process at once, before all processes have agreed to stop."""


class Terminated(SystemExit):
    """The process exits because of SIGTERM, after saving the run."""

    def __init__(self):
        super().__init__(EXIT_CODE)


class Interrupts:
    """Defers signals until all processes of a run can stop after the same update."""

    def __init__(self):
        self.pending = 0  # most severe signal received so far, as an index into `INTERRUPT_TYPES`
        self._severity = {signal.SIGINT: 1, signal.SIGTERM: 2}

    def __enter__(self) -> Interrupts:
        main = threading.current_thread() is threading.main_thread()
        defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        self._before = {
            kind: handler for kind, handler in defaults.items() if main and signal.getsignal(kind) == handler
        }
        for kind in self._before:
            signal.signal(kind, self._defer)
        return self

    def __exit__(self, *_: object) -> None:
        for kind, handler in self._before.items():
            signal.signal(kind, handler)

    def _defer(self, number: int, frame: object) -> None:
        if self.pending and number == signal.SIGINT:
            raise SecondInterrupt("interrupted twice")
        self.pending = max(self.pending, self._severity[signal.Signals(number)])


INTERRUPT_TYPES = (None, KeyboardInterrupt, Termination)


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Makes SIGTERM raise `Termination` in the main thread, unless another handler is installed."""
    has_default_handler = (
        threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    )
    if not has_default_handler:
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise Termination

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
