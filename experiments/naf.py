"""What normalised advantage functions learn from few steps: Q-learning from replay, beside what is known of others.

    python experiments/naf.py [--quick] [--summary]

Five seeds; the policy is evaluated on 10 deterministic episodes. On Pendulum it is held against the runs that a
maintained implementation publishes (github.com/BY571/Normalized-Advantage-Function-NAF-, results/NAF_pendulum.csv:
returns of training episodes of 200 steps, three runs), whose exploration is its own. Written to
experiments/results/naf/.
"""

from __future__ import annotations

from common.comparison import mean_and_each
from common.few_steps import main
from common.published import published

# Mean return of the last 50 training episodes of each run of 150 to 179 episodes.
PENDULUM_OF_OTHERS = (-412.2, -416.7, -443.2)


def others(env: str) -> str:
    if env == "Pendulum-v1":
        return f"NAF, exploring, 30,000 to 36,000 steps: {mean_and_each(PENDULUM_OF_OTHERS)}"
    row = published()[env.split("-")[0]]
    return f"Tianshou's SAC and TD3, a million steps: {row['tianshou_sac_mean']}, {row['tianshou_td3_mean']}"


if __name__ == "__main__":
    main(
        __doc__,
        name="naf",
        question="Normalised advantage functions",
        tasks={"Pendulum-v1": 60_000, "Reacher-v5": 150_000, "HalfCheetah-v5": 300_000},  # environment steps
        variants={"naf": {"algorithm": "naf"}},
        evaluations=12,
        digits={"Reacher-v5": 1},
        others=others,
    )
