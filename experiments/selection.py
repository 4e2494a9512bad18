"""What the policy with the best evaluation is worth beside the last one: the two values of `select`.

    python experiments/selection.py [--tasks T ...] [--seeds N ...] [--quick]

Each training is evaluated twice, with both policies, in other episodes than those of its own evaluations. Runs are made
one at a time with one actor, and those that are in the table are not made again. Written to
experiments/results/selection/.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import jaxtrpo
from common.store import RESULTS
from common.tables import append_line, read_lines
from jaxtrpo.parallel.actors import first
from jaxtrpo.training.selection import earlier_best

FOLDER = RESULTS / "selection"
SEEDS = (0, 1, 2, 3, 4)
EPISODES = 100
QUICK_STEPS, QUICK_SEED = 20_000, 100
TASKS = ("Hopper-v5", "Walker2d-v5")
STEPS = 1_000_000
ABOUT = """# The best policy of a run, and the last one

Made by `python experiments/selection.py`: default settings, a million steps, one actor.
`select="best"`, the default, hands out the policy with the best of ten evaluations, of ten episodes each,
`select="last"` the last one; both are of the same training. Deterministic return over 100 other episodes: mean over
seeds, and each seed. The results of other experiments that were made before a run evaluated by itself are those of the
last policies, or of the last ones whose `return_100` was about the highest.

| task | best | last | best, seeds | last, seeds | thousands of steps of the best |
| --- | --- | --- | --- | --- | --- |
"""


def compared(env: str, steps: int, seed: int) -> dict[str, Any]:
    """Trains once, and evaluates both policies."""
    result = jaxtrpo.train(env, total_steps=steps, seed=seed, actors=1, progress=False)
    learner, done = result.state.learner, int(result.metrics["env_steps"][-1])
    params, moments = first((learner.policy, learner.obs_moments))
    last = dataclasses.replace(result.policy, params=params, moments=moments)
    best = earlier_best(result.state, done)
    return {
        "best": round(jaxtrpo.evaluate(result.policy, env, episodes=EPISODES, seed=1).mean, 1),
        "last": round(jaxtrpo.evaluate(last, env, episodes=EPISODES, seed=1).mean, 1),
        "best_steps": done if best is None else best[0],
        "steps": done,
    }


def readme(lines: Sequence[Mapping[str, Any]]) -> str:
    """Returns the table of all runs."""
    rows = []
    for name in TASKS:
        runs = sorted((line for line in lines if line["task"] == name), key=lambda line: line["seed"])
        if runs:
            means = [f"{np.mean([run[which] for run in runs]):.0f}" for which in ("best", "last")]
            each = [", ".join(f"{run[which]:.0f}" for run in runs) for which in ("best", "last")]
            where = ", ".join(f"{run['best_steps'] / 1000:.0f}" for run in runs)
            rows.append(f"| {' | '.join([name, *means, *each, where])} |\n")
    return ABOUT + "".join(rows)


def main() -> None:
    """Makes the runs that are not in the table yet, and writes README.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, help="only some tasks")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), help="only some seeds")
    parser.add_argument("--quick", action="store_true", help="one short run of each task, which is not kept")
    given = parser.parse_args()
    if given.quick:
        for name in given.tasks:
            print(name, compared(name, QUICK_STEPS, QUICK_SEED), flush=True)
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    table = FOLDER / "runs.jsonl"
    done = {(line["task"], line["seed"]) for line in read_lines(table)}
    for seed in given.seeds:
        for name in given.tasks:
            if (name, seed) not in done:
                line = {"task": name, "seed": seed, **compared(name, STEPS, seed)}
                print(line, flush=True)
                append_line(table, line)
    (FOLDER / "README.md").write_text(readme(read_lines(table)))


if __name__ == "__main__":
    main()
