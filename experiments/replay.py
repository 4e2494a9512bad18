"""What does a critic of actions, learned from a replay buffer, bring beside the score function of the last batch?

    python experiments/replay.py [--quick] [--summary]

TRPO as it comes, whose runs are those of algorithms.py, and `trpo_replay` with the same environments, seeds and
evaluations. What was tried on other seeds is in experiments/results/replay/NOTES.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from common.comparison import Comparison, Curves, Settings, compare, options_of_runs
from common.family import MILLION, MUJOCO, job
from common.runs import Curve

SEEDS = (0, 1, 2, 3, 4)
TRPO, REPLAY = "trpo", "trpo_replay"
MARKS = (100_000, 300_000, MILLION)  # environment steps


def variants(env: str) -> dict[str, Settings]:
    usual = job(env, "trpo", 0).settings
    return {TRPO: usual, REPLAY: {**usual, "algorithm": "trpo_replay"}}


def evaluated(curve: Curve, steps: int) -> float:
    """Mean of the three evaluations of the deterministic policy that end at so many steps."""
    here = np.isfinite(curve["eval_return"]) & (curve["env_steps"] <= 1.01 * steps)
    return float(np.mean(curve["eval_return"][here][-3:]))


def best_mean(runs: Sequence[Curve]) -> float:
    """Best over training of the mean over seeds."""
    found = [curve["eval_return"][np.isfinite(curve["eval_return"])] for curve in runs]
    shortest = min(map(len, found))
    return float(np.mean([each[:shortest] for each in found], axis=0).max())


def by_steps(curves: Curves) -> list[str]:
    lines = [
        "",
        "Evaluations of the deterministic policy, 10 episodes each: the mean of the last three before so many steps, "
        "mean over seeds and, in brackets, each of them; and the best over training of the mean over seeds.",
        "",
        "| task | | 100,000 steps | 300,000 steps | one million | best |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for env, by_label in curves.items():
        for label, runs in by_label.items():
            cells = []
            for steps in MARKS:
                found = [evaluated(curve, steps) for curve in runs]
                cells.append(f"{np.mean(found):.0f} ({', '.join(f'{value:.0f}' for value in found)})")
            lines.append(f"| {env} | {label} | {' | '.join(cells)} | {best_mean(runs):.0f} |")
    return lines


def main() -> None:
    arguments = options_of_runs(__doc__).parse_args()
    compare(
        Comparison(
            name="replay",
            question="TRPO, and TRPO with a critic of actions beside the score",
            envs=MUJOCO,
            variants=variants,
            seeds=SEEDS,
            axes=("env_steps", "wall_seconds"),
            conclude=lambda curves: [] if arguments.quick else by_steps(curves),
        ),
        arguments,
    )


if __name__ == "__main__":
    main()
