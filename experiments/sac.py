"""What soft actor-critic learns in few steps: Pendulum and HalfCheetah.

    python experiments/sac.py [--quick] [--summary]

The policy is evaluated on 10 deterministic episodes. Written to experiments/results/sac/.
"""

from __future__ import annotations

from common.few_steps import main

if __name__ == "__main__":
    main(
        __doc__,
        name="sac",
        question="Soft actor-critic",
        tasks={"Pendulum-v1": 20_000, "HalfCheetah-v5": 100_000},  # environment steps
        variants={"sac": {"algorithm": "sac"}},
        evaluations=10,
        fewer_seeds={"HalfCheetah-v5": (0, 1, 2)},
    )
