"""What every baseline prints: a line after each update. The script that started it reads the clock."""

from __future__ import annotations


def report(env_steps: int, mean_return: float) -> None:
    """Environment steps so far, and the mean return of the last 100 episodes."""
    print(f"update {env_steps} {mean_return:.6g}", flush=True)
