"""Returns that one training of jaxtrpo has reached after some seconds: what baselines/until_budgets.py is for others.

    PYTHONPATH=experiments python -m common.until_budgets --task HalfCheetah-v5 --algorithm trpo --seed 0 \\
        --begin $(date +%s.%N) --budgets 10 30 100 --episodes 10 [--told]
"""

from __future__ import annotations

import time
from typing import Any

import jax

import jaxtrpo
from common.budgets import AtBudgets, options
from jaxtrpo.training.train import prepare

NO_END = 1_000_000_000  # environment steps


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--told", action="store_true", help="the run knows that it ends with the largest budget")
    given = parser.parse_args()
    reached = AtBudgets(given.begin, given.budgets)

    def keep(row: Any, state: Any) -> bool:
        learner = state.learner
        handed_out = learner.policy, learner.obs_moments, state.best
        return reached.keep(int(row["env_steps"]), lambda: jax.device_get(handed_out))

    settings = {"algorithm": given.algorithm, "seed": given.seed, "total_steps": NO_END}
    if given.told:
        settings["stop_after_seconds"] = given.begin + given.budgets[-1] - time.time()
    run = prepare(given.task, **settings, on_update=keep)
    final = run.run(progress=False).state

    def worth(handed_out: Any) -> float:
        policy, moments, best = handed_out
        then = final._replace(learner=final.learner._replace(policy=policy, obs_moments=moments), best=best)
        return jaxtrpo.evaluate(run.policy_of(then), episodes=given.episodes, seed=given.seed + 1_000).mean

    print(reached.answer(worth))


if __name__ == "__main__":
    main()
