"""What memory is worth where velocities are hidden: recurrent policies beside feed-forward ones.

    python experiments/hidden_velocities.py [--quick]

Five seeds; the deterministic policy is evaluated on 100 episodes after training. Runs are made one at a time, and those
that are in the table are not made again. Written to experiments/results/hidden_velocities/.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import jaxtrpo
from common.hidden import positions_only
from common.tables import append_line, read_lines

RESULTS = Path(__file__).parent / "results" / "hidden_velocities"
SEEDS = (0, 1, 2, 3, 4)
EPISODES = 100
FIELDS = ("task", "system", "seed", "steps", "mean", "std", "seconds")


class Task(NamedTuple):
    """An environment without its velocities."""

    steps: int
    settings: dict[str, Any]  # tuned for the task
    published: str  # rl-zoo's tuned RecurrentPPO, with LSTM


TASKS = {
    "CartPole-v1": Task(100_000, {}, "500"),
    "Pendulum-v1": Task(100_000, {"discount": 0.9}, "-218"),
}
SYSTEMS = {
    "trpo, gru": {"algorithm": "trpo", "policy": "gru"},
    "trpo, lstm": {"algorithm": "trpo", "policy": "lstm"},
    "trpo, mlp": {"algorithm": "trpo", "policy": "mlp"},
    "ppo, gru": {"algorithm": "ppo(learning_rate=0.001)", "policy": "gru"},
}


def run(task: str, system: str, seed: int, *, steps: int) -> dict[str, Any]:
    """Trains once; returns the line of the table."""
    settings = {**TASKS[task].settings, **SYSTEMS[system]}
    result = jaxtrpo.train(positions_only(task), total_steps=steps, seed=seed, progress=False, **settings)
    found = jaxtrpo.evaluate(result.policy, positions_only(task), episodes=EPISODES, seed=1)
    seconds = float(result.metrics["wall_seconds"][-1])
    values = (task, system, seed, steps, round(found.mean, 2), round(found.std, 2), round(seconds, 1))
    return dict(zip(FIELDS, values, strict=True))


def summary(lines: list[dict[str, Any]]) -> list[str]:
    """Returns the lines of README.md."""
    text = [
        "# Memory where velocities are hidden",
        "",
        "Made by `python experiments/hidden_velocities.py`. Observations are positions and angles only. Return of the",
        "deterministic policy after training, over 100 episodes: mean over seeds, and each seed. `discount=0.9` on",
        "Pendulum and `learning_rate=0.001` of `ppo` were chosen on seed 100; everything else is the default.",
        "",
        "| task | steps | system | mean | seeds | seconds of a run | rl-zoo's RecurrentPPO, published |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for task, about in TASKS.items():
        for system in SYSTEMS:
            rows = [line for line in lines if (line["task"], line["system"]) == (task, system)]
            if rows:
                means = [float(line["mean"]) for line in rows]
                seconds = np.median([float(line["seconds"]) for line in rows])
                cells = [
                    task,
                    f"{about.steps:,}",
                    system,
                    f"{np.mean(means):.0f}",
                    ", ".join(f"{mean:.0f}" for mean in means),
                    f"{seconds:.0f}",
                    about.published,
                ]
                text.append(f"| {' | '.join(cells)} |")
    return [*text, "", "Gymnasium's simulators are stepped in Python."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short run of each system, which is not kept")
    quick = parser.parse_args().quick
    if quick:
        for task in TASKS:
            for system in SYSTEMS:
                print(run(task, system, 100, steps=2_000), flush=True)
        return
    table = RESULTS / "runs.jsonl"
    RESULTS.mkdir(parents=True, exist_ok=True)
    lines = read_lines(table)
    done = {(line["task"], line["system"], int(line["seed"])) for line in lines}
    for seed in SEEDS:
        for task, about in TASKS.items():
            for system in SYSTEMS:
                if (task, system, seed) not in done:
                    line = run(task, system, seed, steps=about.steps)
                    append_line(table, line)
                    print(line, flush=True)
    (RESULTS / "README.md").write_text("\n".join(summary(read_lines(table))) + "\n")


if __name__ == "__main__":
    main()
