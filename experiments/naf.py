"""What normalised advantage functions learn from few steps: Q-learning from replay, beside what is known of others.

    python experiments/naf.py [--quick] [--summary]

Five seeds; the policy is evaluated on 10 deterministic episodes. Its noise is not learned: as it comes, with a standard
deviation of 0.61 of the range, and with 0.37, which was measured first; on seeds 101 to 104 of Pendulum four runs of
four find the best policy with 0.61 and 1, three with 0.37. On Pendulum it is held against the runs that a maintained
implementation publishes (github.com/BY571/Normalized-Advantage-Function-NAF-, results/NAF_pendulum.csv: returns of
training episodes of 200 steps, three runs), whose exploration is its own. Written to experiments/results/naf/.
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
    often = {"total_steps": steps, "eval_every": steps // EVALUATIONS}
    as_it_comes = {"algorithm": "naf", **often}
    return {"naf": as_it_comes, "naf, less noise": {**as_it_comes, "policy": "mlp(initial_log_std=-1)"}}


def conclude(curves: Curves) -> Iterator[str]:
    yield from (
        "",
        "Mean of the last three evaluations, and return of the exploring policy in the last twentieth, mean over seeds "
        "and each of them.",
        "",
        "| task | steps | | deterministic | exploring | of others |",
        "| --- | --- | --- | --- | --- | --- |",
    )
    for env, by_label in curves.items():
        digits = 1 if env == "Reacher-v5" else 0
        for label, runs in by_label.items():
            deterministic = mean_and_each([evaluated(curve, TASKS[env]) for curve in runs], digits)
            exploring = mean_and_each([final(curve) for curve in runs], digits)
            yield f"| {env} | {TASKS[env]:,} | {label} | {deterministic} | {exploring} | {others(env)} |"


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
