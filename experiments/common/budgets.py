"""What a training is worth after so many seconds: copies of its policy are kept, and evaluated when it is over."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any


def options(description: str | None) -> argparse.ArgumentParser:
    """The task, the seed, the clock, and how much is evaluated."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", required=True)
    parser.add_argument("--algorithm", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--begin", type=float, required=True, help="when the command was given, in seconds since 1970")
    parser.add_argument("--budgets", type=float, nargs="+", required=True, help="seconds")
    parser.add_argument("--episodes", type=int, required=True, help="of each evaluation")
    return parser


class AtBudgets:
    """Policies of the first moments after each budget."""

    def __init__(self, begin: float, budgets: Sequence[float]):
        """`begin`: when the command was given, in seconds since 1970."""
        self.begin, self.budgets = begin, budgets
        self.kept: list[tuple[float, int, Any]] = []  # seconds, environment steps, policy

    def keep(self, env_steps: int, policy: Callable[[], Any]) -> bool:
        """Keeps `policy()` if a budget was reached since the last call; returns whether there are others to come."""
        seconds = time.time() - self.begin
        while len(self.kept) < len(self.budgets) and seconds >= self.budgets[len(self.kept)]:
            self.kept.append((seconds, env_steps, policy()))
        return len(self.kept) < len(self.budgets)

    def answer(self, worth: Callable[[Any], float]) -> str:
        """A line of JSON with seconds, environment steps and returns at the budgets; `worth` evaluates a policy."""
        seconds, steps = [round(each[0], 2) for each in self.kept], [each[1] for each in self.kept]
        returns = [round(float(worth(policy)), 2) for _, _, policy in self.kept]
        return json.dumps({"seconds": seconds, "steps": steps, "returns": returns})
