"""What does a critic of actions, learned from a replay buffer, bring beside the score function of the last batch?

    python experiments/replay.py [--quick] [--summary]

TRPO as it comes, whose runs are those of algorithms.py, and `trpo_replay` with the same environments, seeds and
evaluations. What was tried on other seeds is in experiments/results/replay/NOTES.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

import numpy as np

from common.comparison import Comparison, Curves, Settings, compare, mean_and_each, options_of_runs
from common.family import MILLION, MUJOCO, job
from common.published import SB3_TRPO, published
from common.runs import train_all
from common.statistics import best_of_mean, evaluated, trimmed_mean
from common.store import RESULTS, Curve, Job, Store

SEEDS = (0, 1, 2, 3, 4)
MORE_SEEDS = (5, 6, 7, 8, 9)  # `trpo` as far as `SHORT`
SHORT = 300_000  # environment steps
TRPO, REPLAY = "trpo", "trpo_replay"
MARKS = (100_000, 300_000, MILLION)  # environment steps


def variants(env: str) -> dict[str, Settings]:
    usual = job(env, "trpo", 0).settings
    return {TRPO: usual, REPLAY: {**usual, "algorithm": "trpo_replay"}}


def against_published(curves: Curves, again: Mapping[str, Sequence[Curve]]) -> Iterator[str]:
    """`again`: runs of `trpo_replay` with other seeds."""
    yield from (
        "",
        "## Against published results at one million steps",
        "",
        "Best over training of the mean over seeds of ten deterministic episodes. SAC is Tianshou's. Of Swimmer, only "
        "results with a discount of 0.99 are compared (sb3-contrib's TRPO has 359 with 0.9999). Seeds are "
        f"{_range(SEEDS)}, and again {_range(MORE_SEEDS)}.",
        "",
        f"| task | published, on-policy | SAC | trpo | trpo_replay | trpo_replay, seeds {_range(MORE_SEEDS)} "
        "| at or above on-policy, SAC; the same again |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    )
    reached, of_others = np.zeros((2, 2), int), published()
    for env, by_label in curves.items():
        task = env.split("-")[0]
        theirs = of_others[task]
        ppo, a2c, of_sac = (float(theirs[f"tianshou_{name}_mean"]) for name in ("ppo", "a2c", "sac"))
        of_trpo = SB3_TRPO.get(task, -np.inf)
        best, source = max(
            (ppo, "Tianshou, PPO"), (a2c, "Tianshou, A2C"), (of_trpo, "sb3-contrib, TRPO"), key=itemgetter(0)
        )
        ours = [best_of_mean(runs) for runs in (by_label[TRPO], by_label[REPLAY], again[env])]
        shown = [f"{mean:.1f} ± {std:.1f}" for mean, std in ours]
        at_or_above = np.round([mean for mean, _ in ours[1:]], 1)[:, None] >= np.array([best, of_sac])
        reached += at_or_above
        verdict = "; ".join(", ".join("yes" if each else "no" for each in some) for some in at_or_above)
        yield f"| {env} | {best} ({source}) | {of_sac} | {' | '.join(shown)} | {verdict} |"
    counts = "; ".join(
        f"on-policy {on_policy} of {len(curves)}, SAC {sac} of {len(curves)} (seeds {_range(seeds)})"
        for (on_policy, sac), seeds in zip(reached, (SEEDS, MORE_SEEDS), strict=True)
    )
    yield from ("", f"At or above: {counts}.")


def _range(seeds: Sequence[int]) -> str:
    return f"{seeds[0]} to {seeds[-1]}"


def train_again(*, only_known: bool) -> Mapping[str, Sequence[Curve]]:
    """Runs of `trpo_replay` with other seeds."""
    jobs = [Job(env, seed, variants(env)[REPLAY]) for seed in MORE_SEEDS for env in MUJOCO]
    found: dict[str, list[Curve]] = {env: [] for env in MUJOCO}
    for case, curve in zip(jobs, train_all(jobs, store=Store(RESULTS / "replay"), only_known=only_known), strict=True):
        if curve is not None:
            found[case.env].append(curve)
    return found


def train_more(*, only_known: bool) -> Curves:
    """The beginnings of runs of other seeds; what both settings have."""
    cases = [(env, label, seed) for seed in MORE_SEEDS for env in MUJOCO for label in (TRPO, REPLAY)]
    jobs = [Job(env, seed, {**variants(env)[label], "total_steps": SHORT}) for env, label, seed in cases]
    found: dict[str, dict[str, list[Curve]]] = {env: {TRPO: [], REPLAY: []} for env in MUJOCO}
    for (env, label, _), curve in zip(
        cases, train_all(jobs, store=Store(RESULTS / "replay"), only_known=only_known), strict=True
    ):
        if curve is not None:
            found[env][label].append(curve)
    return {env: same_seeds(by_label) for env, by_label in found.items()}


def same_seeds(by_label: Mapping[str, Sequence[Curve]]) -> dict[str, Sequence[Curve]]:
    """Seeds are in order, so that the first of both are the same."""
    number = min(map(len, by_label.values()))
    return {label: runs[:number] for label, runs in by_label.items()}


def early(curves: Curves, more: Curves) -> Iterator[str]:
    yield from (
        "",
        "## Learning from few steps",
        "",
        "Evaluations of the deterministic policy, 10 episodes each: the mean of the last three before so many steps, "
        "mean over the seeds that both have and, in brackets, each of them. Seeds from 5 on were trained for 300,000 "
        "steps.",
        "",
        "| task | | 100,000 steps | 300,000 steps | one million |",
        "| --- | --- | --- | --- | --- |",
    )

    def at(steps: int, env: str, label: str) -> list[float]:
        begun = more[env][label] if steps <= SHORT else ()
        return [evaluated(curve, steps) for curve in (*curves[env][label], *begun)]

    scores: dict[tuple[str, int], list[float]] = {}
    worst: dict[int, list[tuple[float, str]]] = {}
    for env, by_label in curves.items():
        untrained = np.mean([curve["mean_return"][np.isfinite(curve["mean_return"])][0] for curve in by_label[TRPO]])
        usual = np.mean([evaluated(curve, MILLION) for curve in by_label[TRPO]]) - untrained
        for label in by_label:
            cells = []
            for steps in MARKS:
                found = at(steps, env, label)
                scores.setdefault((label, steps), []).extend(float((value - untrained) / usual) for value in found)
                cells.append(mean_and_each(found))
            yield f"| {env} | {label} | {' | '.join(cells)} |"
        for steps in MARKS:
            means = [np.mean(at(steps, env, label)) for label in (TRPO, REPLAY)]
            ours, theirs = float(means[1] - untrained), float(means[0] - untrained)
            worst.setdefault(steps, []).append((ours / theirs, env))
    yield from (
        "",
        "Over all tasks; 0 is what the first episodes of TRPO return, 1 what it reaches after a million steps.",
        "",
        "| steps | trpo, interquartile mean | trpo_replay | ratio | task with the lowest ratio |",
        "| --- | --- | --- | --- | --- |",
    )
    for steps in MARKS:
        plain, replay = (float(trimmed_mean(np.array(scores[label, steps]))) for label in (TRPO, REPLAY))
        least, where = min(worst[steps])
        yield f"| {steps:,} | {plain:.2f} | {replay:.2f} | {replay / plain:.2f} | {where}, {least:.2f} |"


def conclude(curves: Curves, more: Curves, again: Mapping[str, Sequence[Curve]]) -> list[str]:
    compared = {env: by_label for env, by_label in curves.items() if len(by_label) == 2}
    return [
        *against_published(compared, again),
        *early({env: same_seeds(runs) for env, runs in compared.items()}, more),
    ]


def main() -> None:
    arguments = options_of_runs(__doc__).parse_args()
    more = {} if arguments.quick else train_more(only_known=arguments.summary)
    again = {} if arguments.quick else train_again(only_known=arguments.summary)
    compare(
        Comparison(
            name="replay",
            question="TRPO, and TRPO with a critic of actions beside the score",
            envs=MUJOCO,
            variants=variants,
            seeds=SEEDS,
            axes=("env_steps", "wall_seconds"),
            conclude=lambda curves: [] if arguments.quick else conclude(curves, more, again),
        ),
        arguments,
    )


if __name__ == "__main__":
    main()
