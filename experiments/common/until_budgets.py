"""Returns that one training of jaxtrpo has reached after some seconds: what baselines/until_budgets.py is for others.

    PYTHONPATH=experiments python -m common.until_budgets --task HalfCheetah-v5 --algorithm trpo --seed 0 \\
        --begin $(date +%s.%N) --budgets 10 30 100 --episodes 10
"""

from __future__ import annotations

from typing import Any

import jax

import jaxtrpo
from common.budgets import AtBudgets, options
from jaxtrpo.training.train import prepare

NO_END = 1_000_000_000  # environment steps


def main() -> None:
    given = options(__doc__).parse_args()
    reached = AtBudgets(given.begin, given.budgets)

    def keep(row: Any, state: Any) -> bool:
        learner = state.learner
        return reached.keep(int(row["env_steps"]), lambda: jax.device_get((learner.policy, learner.obs_moments)))

    settings = {"algorithm": given.algorithm, "seed": given.seed, "total_steps": NO_END}
    run = prepare(given.task, **settings, on_update=keep)
    final = run.run(progress=False).state

    def worth(policy_and_moments: Any) -> float:
        policy, moments = policy_and_moments
        then = final._replace(learner=final.learner._replace(policy=policy, obs_moments=moments))
        return jaxtrpo.evaluate(run.policy_of(then), episodes=given.episodes, seed=given.seed + 1_000).mean

    print(reached.answer(worth))


if __name__ == "__main__":
    main()
