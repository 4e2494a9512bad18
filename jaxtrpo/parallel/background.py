"""Function calls on background threads."""

from __future__ import annotations

import atexit
import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

ACTOR = "jaxtrpo-actor"  # name of the threads that step environments
IN_BACKGROUND = "jaxtrpo-background"  # and of those of `in_background`
EXIT_SECONDS = 10.0  # for which the end of the process waits for the latter

T = TypeVar("T")


def in_background(function: Callable[..., T], *arguments: object) -> Future[T]:
    """Starts a call on another thread, and returns the future of its result.

    The thread is a daemon, for which Python does not wait when it exits: an interrupt while a thread starts would leave
    a thread of a pool that is joined for ever. The end of the process waits for it all the same, `EXIT_SECONDS` at
    most, because Python aborts a process that exits while a program is compiled on another thread.
    """
    _join_at_exit()
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name=IN_BACKGROUND, daemon=True).start()
    return future


def is_busy() -> bool:
    """Returns whether any thread of ours is left, whose return would abort a process that exits."""
    return any(thread.name in (ACTOR, IN_BACKGROUND) for thread in threading.enumerate())


@functools.cache
def _join_at_exit() -> None:
    def join() -> None:
        end = time.monotonic() + EXIT_SECONDS
        for thread in threading.enumerate():
            if thread.name == IN_BACKGROUND:
                thread.join(max(0.0, end - time.monotonic()))

    atexit.register(join)
