"""What soft actor-critic learns in few steps: Pendulum and HalfCheetah.

    python experiments/sac.py [--quick] [--summary]

The policy is evaluated on 10 deterministic episodes. Written to experiments/results/sac/.
"""

from __future__ import annotations

from collections.abc import Iterator

from common.comparison import Comparison, Curves, Settings, compare, mean_and_each, options_of_runs
from common.statistics import evaluated, final

TASKS = {"Pendulum-v1": 20_000, "HalfCheetah-v5": 100_000}  # environment steps
EVALUATIONS = 10
SEEDS = (0, 1, 2, 3, 4)
FEWER = {"HalfCheetah-v5": (0, 1, 2)}


def variants(env: str) -> dict[str, Settings]:
    steps = TASKS[env]
    return {"sac": {"algorithm": "sac", "total_steps": steps, "eval_every": steps // EVALUATIONS}}


def conclude(curves: Curves) -> Iterator[str]:
    yield from (
        "",
        "Mean of the last three evaluations, and return of the exploring policy in the last twentieth, mean over seeds "
        "and each of them.",
        "",
        "| task | steps | deterministic | exploring |",
        "| --- | --- | --- | --- |",
    )
    for env, by_label in curves.items():
        for runs in by_label.values():
            deterministic = mean_and_each([evaluated(curve, TASKS[env]) for curve in runs])
            yield f"| {env} | {TASKS[env]:,} | {deterministic} | {mean_and_each([final(curve) for curve in runs])} |"


def main() -> None:
    arguments = options_of_runs(__doc__).parse_args()
    compare(
        Comparison(
            name="sac",
            question="Soft actor-critic",
            envs=tuple(TASKS),
            variants=variants,
            seeds=SEEDS,
            fewer_seeds=FEWER,
            conclude=lambda curves: [] if arguments.quick else list(conclude(curves)),
        ),
        arguments,
    )


if __name__ == "__main__":
    main()
