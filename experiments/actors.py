"""What do more actors bring? Seconds for 20,000 steps of Reacher, and learning against the clock, on 1..cores actors.

And what do as many runs side by side take, with one actor each? That is how the other experiments run.

    python experiments/actors.py [--quick]

Beside it the table published in 2016: threads of Python, one environment each. Written to experiments/results/actors/.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

from jaxtrpo.parallel.devices import choose_actors

ACTORS = choose_actors()  # before anything starts JAX

import jax  # noqa: E402

from common.comparison import extent_of, options  # noqa: E402
from common.machine import machine  # noqa: E402
from common.plots import colors_of, draw_curves, panels, save  # noqa: E402
from common.runs import train_all  # noqa: E402
from common.store import Curve, Job  # noqa: E402
from common.tables import write_csv  # noqa: E402
from jaxtrpo.training.train import prepare  # noqa: E402

TASK = "Reacher-v5"
STEPS = 20_224  # 20,000 in whole segments
SEEDS = (0, 1, 2)
IN_2016 = {1: 17.9, 2: 9.5, 3: 6.4, 4: 5.5, 5: 5.1}  # seconds


def seconds_to_collect(counts: Sequence[int], rounds: int) -> dict[int, float]:
    """Median seconds, the counts of actors taking turns."""
    collects, states, seconds = {}, {}, {count: [] for count in counts}
    for count in counts:
        run = prepare(TASK, adapt="fixed", steps_per_update=STEPS, actors=count)
        states[count] = run.state
        collects[count] = run.update.lower(run.state).compile_collect()
    for _ in range(rounds):
        for count in counts:
            begin = time.perf_counter()
            states[count], _ = jax.block_until_ready(collects[count](states[count]))
            seconds[count].append(time.perf_counter() - begin)
    return {count: statistics.median(values) for count, values in seconds.items()}


def main() -> None:
    arguments = options(__doc__).parse_args()
    extent = extent_of("actors", SEEDS, quick=arguments.quick)
    counts = range(1, ACTORS.count + 1)
    seconds = seconds_to_collect(counts, rounds=3 if arguments.quick else 15)

    def train(seeds: Sequence[int], actors: int, *, at_once: int) -> list[Curve]:
        jobs = [Job(TASK, seed, {**extent.settings, "actors": actors}) for seed in seeds]
        return [curve for curve in train_all(jobs, store=extent.store, workers=at_once) if curve is not None]

    # Against the clock: one run at a time.
    curves = {f"{count} actors": train(extent.seeds, count, at_once=1) for count in counts}
    side_by_side = train([10 + number for number in counts], 1, at_once=ACTORS.count)
    rows = ((count, f"{20_000 * value / STEPS:.4f}") for count, value in seconds.items())
    write_csv(extent.folder / "seconds.csv", ("actors", "seconds_for_20000_steps"), rows)
    figure, axes = panels(1, 2, "What do more actors bring? Reacher-v5")
    colors = colors_of(curves)
    draw_curves(axes[0, 0], curves, colors, title="against the clock", axis="wall_seconds")
    draw_curves(axes[0, 1], curves, colors, title="against steps", axis="env_steps")
    for place in axes.flat:
        place.legend(fontsize=6)
    save(figure, extent.folder / "curves.png")
    (extent.folder / "README.md").write_text(summary(seconds, curves, side_by_side))
    print(summary(seconds, curves, side_by_side))


def summary(seconds: Mapping[int, float], curves: Mapping[str, Sequence[Curve]], side_by_side: Sequence[Curve]) -> str:
    lines = [
        "# What do more actors bring?",
        "",
        f"`python experiments/actors.py` on {machine()}. Seconds to collect 20,000 steps of Reacher with the policy in "
        "the loop, medians of rounds in which the counts take turns; beside it the table of 2016, from another machine "
        "and Reacher-v1.",
        "",
        "![Learning curves](curves.png)",
        "",
        "| actors | seconds for 20,000 steps | faster than one | seconds in 2016 | faster than one in 2016 |",
        "| --- | --- | --- | --- | --- |",
    ]
    for count in sorted({*seconds, *IN_2016}):
        ours = (
            f"{20_000 / STEPS * seconds[count]:.3f} | {seconds[1] / seconds[count]:.2f}" if count in seconds else " | "
        )
        then = f"{IN_2016[count]} | {IN_2016[1] / IN_2016[count]:.2f}" if count in IN_2016 else " | "
        lines.append(f"| {count} | {ours} | {then} |")
    lines += ["", "A run, from typing the command to its last update, takes:", ""]
    for label, runs in curves.items():
        if runs:
            lines.append(f"- {label}, alone: {_median_seconds(runs):.0f} seconds")
    if side_by_side:
        each, many = _median_seconds(side_by_side), len(side_by_side)
        lines.append(f"- {many} runs side by side, 1 actor each: {each:.0f} seconds, which is {each / many:.0f} a run")
    return "\n".join(lines) + "\n"


def _median_seconds(runs: Sequence[Curve]) -> float:
    return statistics.median(run["wall_seconds"][-1] for run in runs)


if __name__ == "__main__":
    main()
