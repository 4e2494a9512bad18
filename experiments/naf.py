"""What normalised advantage functions learn from few steps: Q-learning from replay, beside what is known of others.

    python experiments/naf.py [--quick] [--summary]

Five seeds; the policy is evaluated on 10 deterministic episodes. On Pendulum it is held against the runs that a
maintained implementation publishes (github.com/BY571/Normalized-Advantage-Function-NAF-, results/NAF_pendulum.csv:
returns of training episodes of 200 steps, three runs), whose exploration is its own. Written to
experiments/results/naf/.
"""

from __future__ import annotations

from collections.abc import Iterator

from common.comparison import Comparison, Curves, Settings, compare, mean_and_each, options_of_runs
from common.published import published
from common.statistics import evaluated, final

TASKS = {"Pendulum-v1": 60_000, "Reacher-v5": 150_000, "HalfCheetah-v5": 300_000}  # environment steps
EVALUATIONS = 12
SEEDS = (0, 1, 2, 3, 4)
# Mean return of the last 50 training episodes of each run of 150 to 179 episodes.
PENDULUM_OF_OTHERS = (-412.2, -416.7, -443.2)


def variants(env: str) -> dict[str, Settings]:
    steps = TASKS[env]
    return {"naf": {"algorithm": "naf", "total_steps": steps, "eval_every": steps // EVALUATIONS}}


def conclude(curves: Curves) -> Iterator[str]:
    yield from (
        "",
        "Mean of the last three evaluations, and return of the exploring policy in the last twentieth, mean over seeds "
        "and each of them.",
        "",
        "| task | steps | deterministic | exploring | of others |",
        "| --- | --- | --- | --- | --- |",
    )
    for env, by_label in curves.items():
        runs = by_label["naf"]
        digits = 1 if env == "Reacher-v5" else 0
        deterministic = mean_and_each([evaluated(curve, TASKS[env]) for curve in runs], digits)
        exploring = mean_and_each([final(curve) for curve in runs], digits)
        yield f"| {env} | {TASKS[env]:,} | {deterministic} | {exploring} | {others(env)} |"


def others(env: str) -> str:
    if env == "Pendulum-v1":
        return f"NAF, exploring, 30,000 to 36,000 steps: {mean_and_each(PENDULUM_OF_OTHERS)}"
    row = published()[env.split("-")[0]]
    return f"Tianshou's SAC and TD3, a million steps: {row['tianshou_sac_mean']}, {row['tianshou_td3_mean']}"


def main() -> None:
    arguments = options_of_runs(__doc__).parse_args()
    compare(
        Comparison(
            name="naf",
            question="Normalised advantage functions",
            envs=tuple(TASKS),
            variants=variants,
            seeds=SEEDS,
            conclude=lambda curves: [] if arguments.quick else list(conclude(curves)),
        ),
        arguments,
    )


if __name__ == "__main__":
    main()
