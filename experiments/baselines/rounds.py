"""How a baseline that is timed round by round talks to the script that started it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


def answer_rounds(work: Callable[[], object]) -> None:
    """Says that it is ready; then does `work` for each line of standard input, and answers with its seconds."""
    print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        work()
        print(time.perf_counter() - begin, flush=True)
