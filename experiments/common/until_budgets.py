"""Returns that one training of jaxtrpo has reached after some seconds: what baselines/until_budgets.py is for others.

    PYTHONPATH=experiments python -m common.until_budgets --task HalfCheetah-v5 --algorithm trpo --seed 0 \\
        --begin $(date +%s.%N) --budgets 10 30 100 --episodes 10
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import jax

import jaxtrpo
from jaxtrpo.training.train import prepare

NO_END = 1_000_000_000  # environment steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", required=True)
    parser.add_argument("--algorithm", required=True, help="spec string")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--begin", type=float, required=True, help="when the command was given, in seconds since 1970")
    parser.add_argument("--budgets", type=float, nargs="+", required=True, help="seconds")
    parser.add_argument("--episodes", type=int, required=True, help="of each evaluation")
    given = parser.parse_args()
    kept: list[tuple[float, int, Any]] = []

    def keep(row: Any, state: Any) -> bool:
        seconds = time.time() - given.begin
        while len(kept) < len(given.budgets) and seconds >= given.budgets[len(kept)]:
            learner = state.learner
            kept.append((seconds, int(row["env_steps"]), jax.device_get((learner.policy, learner.obs_moments))))
        return len(kept) < len(given.budgets)

    settings = {"algorithm": given.algorithm, "seed": given.seed, "total_steps": NO_END}
    run = prepare(given.task, **settings, on_update=keep)
    final = run.run(progress=False).state
    returns = []
    for _, _, (policy, moments) in kept:
        then = final._replace(learner=final.learner._replace(policy=policy, obs_moments=moments))
        evaluation = jaxtrpo.evaluate(run.policy_of(then), episodes=given.episodes, seed=given.seed + 1_000)
        returns.append(round(evaluation.mean, 2))
    seconds, steps = [round(each[0], 2) for each in kept], [each[1] for each in kept]
    print(json.dumps({"seconds": seconds, "steps": steps, "returns": returns}))


if __name__ == "__main__":
    main()
