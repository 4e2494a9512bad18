"""Function calls on background threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

ACTOR = "jaxtrpo-actor"  # name of the threads that step environments

T = TypeVar("T")


def in_background(function: Callable[..., T], *arguments: object) -> Future[T]:
    """Starts a call on another thread, and returns the future of its result.

    The thread is a daemon, for which Python does not wait when it exits: an interrupt while a thread starts would leave
    a thread of a pool that is joined for ever.
    """
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future
