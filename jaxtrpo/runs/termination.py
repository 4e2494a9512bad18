"""Handling of SIGINT and of SIGTERM, which schedulers send before they kill a process."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Self

from jaxtrpo.parallel.background import is_busy

EXIT_CODE = 128 + signal.SIGTERM
END_SECONDS = 10.0  # within which a process that has saved must end
SAVE_SECONDS = 120.0  # within which a run must be saved after a second SIGTERM
NOT_SAVED = "terminated without saving, because a program or a simulator does not return; checkpoints are intact"


class Termination(KeyboardInterrupt):
    """SIGTERM was received; handled like an interrupt."""


class SecondInterrupt(KeyboardInterrupt):
    """A second SIGINT, which ends this process at once, before all processes have agreed to stop."""


class Interrupted(KeyboardInterrupt):
    """Training was interrupted. The run has been saved if it has an output directory."""

    def __init__(self, result: Any):
        """Keeps what the interrupted call would have returned, of the updates until then, as `result`."""
        super().__init__("training was interrupted; the attribute `result` of this exception has the result so far")
        self.result = result


class Terminated(SystemExit):
    """The process exits because of SIGTERM, after saving the run."""

    def __init__(self):
        super().__init__(EXIT_CODE)


class Handling:
    """Handles SIGINT and SIGTERM while it is entered, where they have Python's default handlers."""

    def __enter__(self) -> Self:
        self._before = _default_handlers(signal.SIGINT, signal.SIGTERM)
        for kind in self._before:
            signal.signal(kind, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for kind, handler in self._before.items():
            signal.signal(kind, handler)

    def defer(self) -> None:
        """Called when an update has been computed, before anything is written."""

    def end_of_update(self) -> None:
        """Called when an update has been written; may raise KeyboardInterrupt."""

    def ignore(self) -> None:
        """Called when the run is over, before it is saved."""

    def _receive(self, number: int, frame: object) -> None:
        raise NotImplementedError


class DeferredSignals(Handling):
    """Defers SIGINT and SIGTERM to the end of an update; while the run is saved, they only decide how it ends.

    Until the first update is computed, they interrupt at once, and so does the second of them. An exception that a
    handler raises while Python collects garbage, or starts a thread, would be lost or leave the thread behind.

    No handler runs while this thread waits for a compiled program, which a simulator that hangs never ends. A SIGTERM
    that is not the first signal therefore ends the process after `END_SECONDS`, or `SAVE_SECONDS` if it was handled.
    """

    def __init__(self):
        self._deferring, self._ignoring, self._over = False, False, False
        self._pending: type[KeyboardInterrupt] | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        self._pipe: tuple[int, int] | None = None
        if signal.SIGTERM in self._before:
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[1], False)
            self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
            self._watcher = threading.Thread(target=self._watch, args=(self._pipe[0],), daemon=True)
            self._watcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over = True
        super().__exit__(*error)
        if self._pipe is not None:
            signal.set_wakeup_fd(self._wakeup)
            os.close(self._pipe[1])  # ends the thread, unless it is waiting for this process to end
            self._watcher.join(timeout=1.0)

    def _watch(self, pipe: int) -> None:
        """Ends the process if a second signal, which Python writes into the pipe at once, is not handled in time."""
        signals = 0
        while number := os.read(pipe, 1):
            signals += number[0] in self._before
            if signals > 1 and number[0] == signal.SIGTERM:
                time.sleep(END_SECONDS)
                if self._ignoring:
                    time.sleep(SAVE_SECONDS - END_SECONDS)
                if not self._over:
                    with contextlib.suppress(OSError):
                        print(NOT_SAVED, file=sys.stderr)
                    _end(EXIT_CODE)
        os.close(pipe)

    def defer(self) -> None:
        """Lets signals wait for the end of an update from now on."""
        self._deferring = True

    def ignore(self) -> None:
        """Lets signals only decide how the run ends, from now on."""
        self._ignoring = True

    def end_of_update(self) -> None:
        """Raises what a signal has asked for since the last update."""
        if self._pending is not None:
            self._ignoring = True
            raise self._pending

    def _receive(self, number: int, frame: object) -> None:
        interrupts = not self._ignoring and (not self._deferring or self._pending is not None)
        if number == signal.SIGTERM or self._pending is None:  # while the run is saved, too
            self._pending = Termination if number == signal.SIGTERM else KeyboardInterrupt
        if interrupts:
            self._ignoring = True
            raise self._pending  # again at the end of the update, if Python collects garbage now and it is lost


def _default_handlers(*kinds: signal.Signals) -> dict[signal.Signals, Any]:
    """Returns the handlers of these signals that are the default ones; none outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    defaults = {kind: signal.default_int_handler if kind == signal.SIGINT else signal.SIG_DFL for kind in kinds}
    return {kind: handler for kind, handler in defaults.items() if signal.getsignal(kind) == handler}


class Interrupts(Handling):
    """Defers signals until all processes of a run can stop after the same update."""

    def __init__(self):
        self.pending = 0  # most severe signal received so far, as an index into `INTERRUPT_TYPES`
        self._severity = {signal.SIGINT: 2, signal.SIGTERM: 3}

    def _receive(self, number: int, frame: object) -> None:
        if self.pending and number == signal.SIGINT:
            raise SecondInterrupt("interrupted twice")
        self.pending = max(self.pending, self._severity[signal.Signals(number)])


STOP = 1  # index below; asked for by on_update, not by a signal
INTERRUPT_TYPES = (None, None, KeyboardInterrupt, Termination)


@contextlib.contextmanager
def ending_within(seconds: float, code: int) -> Iterator[None]:
    """Ends this process with an exit code if the block takes longer, such as where a simulator hangs."""
    timer = _ending(seconds, code)
    try:
        yield
    finally:
        timer.cancel()


def end_in_time(code: int) -> None:
    """Lets the exit of this process, once it begins, take `END_SECONDS` at most.

    JAX waits for compiled programs at exit, and so for ever if a simulator hangs that such a program is stepping. If an
    actor's own thread is left, or one that compiles, the process ends at once: Python would abort it when the call of
    the simulator or of the compiler returns.
    """
    begun = threading.Event()

    def begin() -> None:
        begun.set()
        if is_busy():
            _end(code)

    atexit.register(begin)

    def watch() -> None:  # started now, because no thread can be started at exit
        begun.wait()
        time.sleep(END_SECONDS)
        _end(code)

    threading.Thread(target=watch, daemon=True).start()


def _ending(seconds: float, code: int) -> threading.Timer:
    timer = threading.Timer(seconds, _end, (code,))
    timer.daemon = True
    timer.start()
    return timer


def _end(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Makes SIGTERM, and SIGHUP of a terminal that is closed, raise `Termination` in the main thread.

    Handlers that are installed, and signals that are ignored, as `nohup` does, stay as they are.
    """
    before = _default_handlers(signal.SIGTERM, signal.SIGHUP)

    def interrupt(number: int, frame: object) -> None:
        raise Termination

    for kind in before:
        signal.signal(kind, interrupt)
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
