"""What deep Q-networks learn: CartPole and LunarLander, with and without their refinements.

    python experiments/dqn.py [--quick] [--summary]

Five seeds; the policy is evaluated on 10 deterministic episodes. Written to experiments/results/dqn/.
"""

from __future__ import annotations

from common.few_steps import main

if __name__ == "__main__":
    main(
        __doc__,
        name="dqn",
        question="Deep Q-networks",
        tasks={"CartPole-v1": 100_000, "LunarLander-v3": 200_000},  # environment steps
        variants={
            "dqn": {"algorithm": "dqn"},
            "dqn, dueling": {"algorithm": "dqn", "policy": "mlp(shared=True)"},
            "dqn, one step, not double": {"algorithm": "dqn(n_step=1, double=False)"},
        },
        evaluations=12,
    )
