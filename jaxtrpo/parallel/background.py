"""Function calls on background threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def in_background(function: Callable[..., T], *arguments: object) -> Callable[[], T]:
    """Starts a call on another thread, and returns a function that waits for its result."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function, *arguments)
    pool.shutdown(wait=False)
    return future.result
