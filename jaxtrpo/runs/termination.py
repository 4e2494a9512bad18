"""SIGTERM, which schedulers send before they kill, as an interrupt."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

EXIT_CODE = 128 + signal.SIGTERM


class Termination(KeyboardInterrupt):
    """SIGTERM was received."""


class Terminated(SystemExit):
    """The process ends because of SIGTERM; what it had to save is saved."""

    def __init__(self):
        super().__init__(EXIT_CODE)


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
