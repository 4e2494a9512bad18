"""SIGTERM, which schedulers send before they kill, as an interrupt."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

EXIT_CODE = 128 + signal.SIGTERM


class Termination(KeyboardInterrupt):
    """SIGTERM was received."""


class Impatience(KeyboardInterrupt):
    """A second interrupt, of somebody who does not wait until all processes know of the first."""


class Terminated(SystemExit):
    """The process ends because of SIGTERM; what it had to save is saved."""

    def __init__(self):
        super().__init__(EXIT_CODE)


class Interrupts:
    """Signals that wait until all processes of a training know of them: each alone would leave it at another update."""

    def __init__(self):
        self.urgency = 0  # of what came: an index of `KINDS`
        self._came = {signal.SIGINT: 1, signal.SIGTERM: 2}

    def __enter__(self) -> Interrupts:
        main = threading.current_thread() is threading.main_thread()
        usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        self._before = {kind: one for kind, one in usual.items() if main and signal.getsignal(kind) == one}
        for kind in self._before:
            signal.signal(kind, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for kind, handler in self._before.items():
            signal.signal(kind, handler)

    def _note(self, number: int, frame: object) -> None:
        if self.urgency and number == signal.SIGINT:
            raise Impatience("interrupted twice")
        self.urgency = max(self.urgency, self._came[signal.Signals(number)])


KINDS = (None, KeyboardInterrupt, Termination)


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """While it lasts, SIGTERM raises `Termination` in the main thread, unless someone else handles it."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if not ours:
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise Termination

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
