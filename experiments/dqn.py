"""What deep Q-networks learn: CartPole and LunarLander, with and without their refinements.

    python experiments/dqn.py [--quick] [--summary]

Five seeds; the policy is evaluated on 10 deterministic episodes. Written to experiments/results/dqn/.
"""

from __future__ import annotations

from collections.abc import Iterator

from common.comparison import Comparison, Curves, Settings, compare, mean_and_each, options_of_runs
from common.statistics import evaluated, final

TASKS = {"CartPole-v1": 100_000, "LunarLander-v3": 200_000}  # environment steps
EVALUATIONS = 12
SEEDS = (0, 1, 2, 3, 4)
VARIANTS: dict[str, Settings] = {
    "dqn": {"algorithm": "dqn"},
    "dqn, dueling": {"algorithm": "dqn", "policy": "mlp(shared=True)"},
    "dqn, one step, not double": {"algorithm": "dqn(n_step=1, double=False)"},
}


def variants(env: str) -> dict[str, Settings]:
    steps = TASKS[env]
    return {
        label: {**settings, "total_steps": steps, "eval_every": steps // EVALUATIONS}
        for label, settings in VARIANTS.items()
    }


def conclude(curves: Curves) -> Iterator[str]:
    yield from (
        "",
        "Mean of the last three evaluations, and return of the exploring policy in the last twentieth, mean over seeds "
        "and each of them.",
        "",
        "| task | steps | settings | deterministic | exploring |",
        "| --- | --- | --- | --- | --- |",
    )
    for env, by_label in curves.items():
        for label, runs in by_label.items():
            deterministic = mean_and_each([evaluated(curve, TASKS[env]) for curve in runs])
            exploring = mean_and_each([final(curve) for curve in runs])
            yield f"| {env} | {TASKS[env]:,} | {label} | {deterministic} | {exploring} |"


def main() -> None:
    arguments = options_of_runs(__doc__).parse_args()
    compare(
        Comparison(
            name="dqn",
            question="Deep Q-networks",
            envs=tuple(TASKS),
            variants=variants,
            seeds=SEEDS,
            conclude=lambda curves: [] if arguments.quick else list(conclude(curves)),
        ),
        arguments,
    )


if __name__ == "__main__":
    main()
