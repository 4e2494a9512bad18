"""What does a seed cost in `train_many`, and what alone?

    pip install '.[experiments]' 'gymnax>=1.0'
    python experiments/many.py [--quick]

16 seeds in one program where the environment is one, 4 side by side where it is not, and one run with one actor and
with all, taking turns. Seconds are those from the end of the first update to the end of the last, and in brackets those
of the whole call, compiling included (the compilation cache is warm from the second round on). Written to
experiments/results/many/.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jaxtrpo
from common.comparison import extent_of, options
from common.machine import machine
from common.tables import write_csv
from jaxtrpo.parallel.devices import choose_actors
from jaxtrpo.training.record import Result

ACTORS = choose_actors(program=True)
ROUNDS = 3
TASKS = {  # environment steps of a run, seeds
    "brax:inverted_pendulum": (50_000, 16),
    "brax:ant": (10_240, 16),
    "gymnax:CartPole-v1": (200_000, 16),
    "HalfCheetah-v5": (200_000, 4),
}


class Took(NamedTuple):
    """Seconds of a call."""

    updates: float  # after the first update
    whole: float


def take(call: Callable[[], Sequence[Result]]) -> Took:
    begin = time.perf_counter()
    results = call()
    whole = time.perf_counter() - begin
    walls = [result.metrics["wall_seconds"] for result in results]
    return Took(max(wall[-1] for wall in walls) - min(wall[0] for wall in walls), whole)


def measure(task: str, steps: int, seeds: int, rounds: int) -> dict[str, Took]:
    settings: dict[str, Any] = {"algorithm": "trpo", "total_steps": steps, "progress": False}
    calls = {
        "alone, 1 actor": lambda: [jaxtrpo.train(task, actors=1, **settings)],
        f"alone, {ACTORS.count} actors": lambda: [jaxtrpo.train(task, actors=ACTORS.count, **settings)],
        f"{seeds} seeds": lambda: jaxtrpo.train_many(task, seeds=range(seeds), **settings),
    }
    took: dict[str, list[Took]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            took[name].append(take(call))
    return {
        name: Took(*(statistics.median(each) / (seeds if "seeds" in name else 1) for each in zip(*found, strict=True)))
        for name, found in took.items()
    }


def main() -> None:
    arguments = options(__doc__).parse_args()
    extent = extent_of("many", (), quick=arguments.quick)
    rows, lines = [], [
        "# What does a seed cost in `train_many`?",
        "",
        f"`python experiments/many.py` on {machine()}. Seconds of a seed after the first update, in brackets of the "
        f"whole call; medians of {ROUNDS} rounds. Ratio: over the faster of the runs alone.",
        "",
        "| task | steps | seeds | alone, 1 actor | alone, all actors | a seed of many | ratio | of the whole call |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for task, (steps, seeds) in TASKS.items():
        steps, rounds = (min(steps, 4_096), 1) if arguments.quick else (steps, ROUNDS)
        found = measure(task, steps, seeds, rounds)
        *alone, many = found.values()
        ratios = [min(each[part] for each in alone) for part in (0, 1)]
        cells = " | ".join(f"{each.updates:.2f} ({each.whole:.1f})" for each in found.values())
        over = f"{many.updates / ratios[0]:.2f} | {many.whole / ratios[1]:.2f}"
        lines.append(f"| {task} | {steps:,} | {seeds} | {cells} | {over} |")
        rows += [(task, steps, name, f"{each.updates:.3f}", f"{each.whole:.3f}") for name, each in found.items()]
        print(lines[-1], flush=True)
    write_csv(extent.folder / "seconds.csv", ("task", "env_steps", "how", "updates_seconds", "whole_seconds"), rows)
    (extent.folder / "README.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
