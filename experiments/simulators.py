"""How many simulators should one learner have? A2C, A3C and PPO with 1, 2, 4 and 8 of them, 200,000 steps.

    python experiments/simulators.py [--quick] [--summary]

The comparison of the vector-environment project that this one grew out of, with its 200-200 networks: returns against
steps and against seconds, five seeds. Each run is a process with one actor, a3c with one actor for each of two halves
of its simulators (one with a single simulator). Written to experiments/results/simulators/.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.comparison import extent_of, options_of_runs, require_runs, row_of
from common.machine import machine
from common.plots import colors_of, common_legend, draw_curves, panels, save
from common.runs import train_all
from common.statistics import area, final, moving_mean, seconds
from common.store import Curve, Job
from common.tables import write_csv

TASKS = ("CartPole-v1", "Pendulum-v1", "Hopper-v5", "Reacher-v5", "HalfCheetah-v5")
ALGORITHMS = ("a2c", "a3c", "ppo")
SIMULATORS = (1, 2, 4, 8)
SEEDS = (0, 1, 2, 3, 4)
HIDDEN = {"policy": "mlp(hidden=(200, 200))"}
CRITIC = {
    "a2c": "mlp(hidden=(200, 200), learning_rate=0.002)",
    "a3c": "mlp(hidden=(200, 200), learning_rate=0.002)",
    "ppo": "mlp(hidden=(200, 200), epochs=10, minibatch_size=64, learning_rate=0.0003)",
}
COLUMNS = ("env", "algorithm", "simulators", "seed", "env_steps", "area", "final_return", "seconds")

Curves = Mapping[tuple[str, str], Mapping[str, Sequence[Curve]]]  # by (task, algorithm) and number of simulators


def settings(algorithm: str, simulators: int) -> dict[str, Any]:
    """Of one run. Batches of A2C are 16 steps of each simulator, as long as there are at least four."""
    if algorithm == "ppo":
        words, steps = algorithm, {}
    else:  # smaller batches than usual, and steps as much shorter
        words = f"{algorithm}(learning_rate=0.002, gae_lambda=0.95)"
        steps = {"steps_per_update": 16 * max(simulators, 4)}
    actors = {"actors": min(2, simulators)} if algorithm == "a3c" else {}
    return {
        "algorithm": words, "num_envs": simulators, "total_steps": 200_000, "critic": CRITIC[algorithm],
        **HIDDEN, **steps, **actors,
    }  # fmt: skip


def main() -> None:
    arguments = options_of_runs(__doc__).parse_args()
    extent = extent_of("simulators", SEEDS, quick=arguments.quick)
    tasks = TASKS[:1] if arguments.quick else TASKS
    jobs = {
        (env, algorithm, number, seed): Job(env, seed, {**settings(algorithm, number), **extent.settings})
        for seed in extent.seeds
        for env in tasks
        for algorithm in ALGORITHMS
        for number in SIMULATORS
    }
    one = [case for case, job in jobs.items() if job.settings.get("actors", 1) == 1]
    two = [case for case, job in jobs.items() if job.settings.get("actors", 1) > 1]  # they need all cores
    found: dict[tuple[str, str, int, int], Curve | None] = {}
    for cases, workers in ((one, None), (two, 1)):
        made = train_all(
            [jobs[case] for case in cases], store=extent.store, only_known=arguments.summary, workers=workers
        )
        found.update(zip(cases, made, strict=True))
    curves: dict[tuple[str, str], dict[str, list[Curve]]] = {}
    for env, algorithm, number, seed in jobs:
        curve = found[env, algorithm, number, seed]
        if curve is not None:
            curves.setdefault((env, algorithm), {}).setdefault(label(number), []).append(curve)
    require_runs("simulators", curves)
    known = {case: curve for case, curve in found.items() if curve is not None}
    write_csv(extent.folder / "runs.csv", COLUMNS, ((*case, *figures(curve)) for case, curve in known.items()))
    for axis in ("env_steps", "wall_seconds"):
        plot(curves, axis, extent.folder / f"{axis}.png")
    (extent.folder / "README.md").write_text(summary(curves))
    print((extent.folder / "README.md").read_text())


def label(number: int) -> str:
    return f"{number} simulator{'s' if number > 1 else ''}"


def figures(curve: Curve) -> tuple[Any, ...]:
    return int(curve["env_steps"][-1]), *(f"{of(curve):.5g}" for of in (area, final, seconds))


def plot(curves: Curves, axis: str, path) -> None:
    tasks = list(dict.fromkeys(env for env, _ in curves))
    title = (
        "Mean of the last 100 episodes, interquartile means over five seeds, with 95 % bootstrap intervals shaded; "
        "networks of 200-200"
    )
    figure, axes = panels(len(ALGORITHMS), len(tasks), title)
    colors = colors_of(map(label, SIMULATORS))
    for (env, algorithm), by_number in curves.items():
        place = axes[ALGORITHMS.index(algorithm), tasks.index(env)]
        moving = {name: [moving_mean(run) for run in runs] for name, runs in by_number.items()}
        draw_curves(place, moving, colors, title=f"{env}, {algorithm}", axis=axis)
    common_legend(figure)
    save(figure, path)


def summary(curves: Curves) -> str:
    lines = [
        "# How many simulators should one learner have?",
        "",
        f"`python experiments/simulators.py` on {machine()}; 200,000 steps. Returns are those of complete episodes of "
        "the exploring policy, interquartile means over seeds with 95 % bootstrap intervals: area over the whole run, "
        "final over the last 5 %; the plots show the mean of the last 100 episodes. An update of A2C has 16 steps of "
        "each simulator, at least 64 in all, and one of A3C what falls on one of its actors of that: 64, 32, 32 and 64 "
        "steps; learning rates are 0.002. Seconds are medians of collecting and learning. Runs of one actor are two "
        "side by side, one on each core; A3C has both cores from two simulators on.",
        "",
        "![Against steps](env_steps.png)",
        "![Against seconds](wall_seconds.png)",
        "",
        "| task | algorithm | simulators | area | final | seconds | seeds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (env, algorithm), by_number in curves.items():
        for number, runs in by_number.items():
            lines.append(row_of(f"{env} | {algorithm}", number.split()[0], runs, (area, final)))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
