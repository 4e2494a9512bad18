"""Is the same task learned alike whatever unit its rewards are in?

    python experiments/reward_scale.py [--quick]

Each algorithm learns a task whose rewards are multiplied by a factor; the table has the mean return of the last 100
episodes over that factor, the median of the seeds. A row should be constant but for what rounding makes of a training.
Written to experiments/results/reward_scale/.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import gymnasium
import numpy as np

import jaxtrpo
from common.comparison import extent_of, options
from common.machine import machine

FACTORS = (1e-6, 1e-3, 1.0, 1e3, 1e6)
SEEDS = (0, 1, 2)
STEPS = 20_000
ALGORITHMS = ("trpo", "ppo", "pg", "a2c", "trpo_replay", "naf")


class Point(gymnasium.Env):
    """A point on a line that is pushed, and shall stay near 0."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.speed = self.np_random.uniform(-1, 1), 0.0
        return np.array([self.place, self.speed], np.float32), {}

    def step(self, action):
        self.speed = 0.9 * self.speed + 0.1 * float(action[0])
        self.place += self.speed
        return np.array([self.place, self.speed], np.float32), -abs(self.place), False, False, {}


TASKS: dict[str, Callable[[], gymnasium.Env]] = {
    "point mass": lambda: gymnasium.wrappers.TimeLimit(Point(), 100),
    "CartPole-v1": lambda: gymnasium.make("CartPole-v1"),
    "Pendulum-v1": lambda: gymnasium.make("Pendulum-v1"),
}


def scaled(task: str, factor: float) -> gymnasium.Env:
    return gymnasium.wrappers.TransformReward(TASKS[task](), lambda reward: reward * factor)


def measure(task: str, algorithm: str, factor: float, seeds: tuple[int, ...], steps: int) -> float:
    """Median over seeds of the return of the last episodes, in units of the factor."""
    found = [
        jaxtrpo.train(
            functools.partial(scaled, task, factor), algorithm=algorithm, seed=seed, total_steps=steps, progress=False
        ).metrics["return_100"][-1]
        for seed in seeds
    ]
    return float(np.median(found)) / factor


def rows(seeds: tuple[int, ...], factors: tuple[float, ...], steps: int) -> Iterator[str]:
    for task in TASKS:
        for algorithm in ALGORITHMS:
            if algorithm == "naf" and task == "CartPole-v1":  # whose actions are choices
                continue
            values = [measure(task, algorithm, factor, seeds, steps) for factor in factors]
            line = f"| {task} | {algorithm} | {' | '.join(f'{value:.4g}' for value in values)} |"
            print(line, flush=True)
            yield line


def main() -> None:
    arguments = options(__doc__).parse_args()
    extent = extent_of("reward_scale", SEEDS, quick=arguments.quick)
    factors, steps = ((1e-3, 1.0), 2_048) if arguments.quick else (FACTORS, STEPS)
    lines = [
        "# Rewards in other units",
        "",
        f"`python experiments/reward_scale.py` on {machine()}: the mean return of the last 100 episodes after "
        f"{steps:,} steps, over the factor that rewards were multiplied by; median of {len(extent.seeds)} seeds, "
        "default settings.",
        "",
        f"| task | algorithm | {' | '.join(f'{factor:g}' for factor in factors)} |",
        "| --- " * (len(factors) + 2) + "|",
        *rows(tuple(extent.seeds), factors, steps),
    ]
    (extent.folder / "README.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
