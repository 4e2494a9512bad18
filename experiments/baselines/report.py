"""How every baseline is started and what it prints. The script that started it reads the clock."""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterable


def options(*names: str) -> argparse.ArgumentParser:
    """The task, how long and with which seed, and integers that are called `names`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("env")
    for name in ("total-steps", "seed", *names):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser


class Report:
    """Prints a line after each update: environment steps so far, and the mean return of the last 100 episodes."""

    def __init__(self) -> None:
        self._last_returns: collections.deque[float] = collections.deque(maxlen=100)

    def __call__(self, env_steps: int, returns: Iterable[float]) -> None:
        """`returns` are those of the episodes that ended since the last call."""
        last = self._last_returns
        last.extend(returns)
        print(f"update {env_steps} {sum(last) / len(last) if last else float('nan'):.6g}", flush=True)
