"""Handling of SIGINT and of SIGTERM, which schedulers send before they kill a process."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any, Self

EXIT_CODE = 128 + signal.SIGTERM


class Termination(KeyboardInterrupt):
    """SIGTERM was received; handled like an interrupt."""


class SecondInterrupt(KeyboardInterrupt):
    """A second SIGINT, which ends this process at once, before all processes have agreed to stop."""


class Terminated(SystemExit):
    """The process exits because of SIGTERM, after saving the run."""

    def __init__(self):
        super().__init__(EXIT_CODE)


class _Handling:
    """Handles SIGINT and SIGTERM while it is entered, where they have Python's default handlers."""

    def __enter__(self) -> Self:
        self._before = _default_handlers()
        for kind in self._before:
            signal.signal(kind, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for kind, handler in self._before.items():
            signal.signal(kind, handler)

    def _receive(self, number: int, frame: object) -> None:
        raise NotImplementedError


class DeferredSignals(_Handling):
    """Defers SIGINT and SIGTERM to the end of an update, and ignores them while the run is saved.

    Before the first update they interrupt at once, and so does the second of them. An exception that a handler raises
    while Python collects garbage, or starts a thread, would be lost or leave the thread behind.
    """

    def __init__(self):
        self._deferring, self._ignoring = False, False
        self._pending: type[KeyboardInterrupt] | None = None

    def end_of_update(self) -> None:
        """Raises what a signal has asked for since the last update; from now on, signals wait for the next one."""
        self._deferring = True
        if self._pending is not None:
            self._ignoring = True
            raise self._pending

    def _receive(self, number: int, frame: object) -> None:
        if self._ignoring:
            return
        kind = Termination if number == signal.SIGTERM else KeyboardInterrupt
        if self._deferring and self._pending is None:
            self._pending = kind
            return
        self._ignoring = True
        raise kind


def _default_handlers() -> dict[signal.Signals, Any]:
    """Returns the handlers of SIGINT and SIGTERM that are the default ones; none outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    return {kind: handler for kind, handler in defaults.items() if signal.getsignal(kind) == handler}


class Interrupts(_Handling):
    """Defers signals until all processes of a run can stop after the same update."""

    def __init__(self):
        self.pending = 0  # most severe signal received so far, as an index into `INTERRUPT_TYPES`
        self._severity = {signal.SIGINT: 1, signal.SIGTERM: 2}

    def _receive(self, number: int, frame: object) -> None:
        if self.pending and number == signal.SIGINT:
            raise SecondInterrupt("interrupted twice")
        self.pending = max(self.pending, self._severity[signal.Signals(number)])


INTERRUPT_TYPES = (None, KeyboardInterrupt, Termination)


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Makes SIGTERM raise `Termination` in the main thread, unless another handler is installed."""
    if signal.SIGTERM not in _default_handlers():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise Termination

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
