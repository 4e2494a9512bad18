"""Every algorithm on small control tasks of Gymnasium and on MuJoCo, with default settings where they serve.

    python experiments/algorithms.py [--quick] [--summary] [--tasks NAME ...] [--algorithms NAME ...]

Each run has one actor, and as many run side by side as there are cores; a3c has two, and runs alone. The policy is
evaluated on 10 deterministic episodes all along. Runs of TRPO on MuJoCo are those of benchmark_1m.py. Written to
experiments/results/algorithms/.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from common.comparison import extent_of, options_of_runs, require_runs, row_of
from common.family import ALL, GYMNASIUM, MUJOCO, TUNED, job, seeds_of, total_steps
from common.machine import machine
from common.plots import colors_of, common_legend, draw_curves, panels, save
from common.published import published
from common.runs import train_all
from common.statistics import area, best_of_mean, final, seconds
from common.store import Curve, Store
from common.tables import write_csv

COLUMNS = (
    "env",
    "algorithm",
    "seed",
    "env_steps",
    "area",
    "final_return",
    "best_evaluation",
    "last_evaluation",
    "seconds",
)
# Returns that were asked for: task, least, algorithms of which one or each has to reach it.
ASKED = (
    ("CartPole-v1", 475, ("trpo", "ppo", "a2c"), "each"),
    ("LunarLander-v3", 200, ("trpo", "ppo"), "one"),
    ("BipedalWalker-v3", 280, ("trpo", "ppo"), "one"),
    ("Pendulum-v1", -200, ALL, "one"),
)

Curves = Mapping[str, Mapping[str, Sequence[Curve]]]  # by task and algorithm, in the order of seeds


def main() -> None:
    parser = options_of_runs(__doc__)
    parser.add_argument("--tasks", nargs="+", default=[*GYMNASIUM, *MUJOCO])
    parser.add_argument("--algorithms", nargs="+", default=list(ALL))
    arguments = parser.parse_args()
    folder, store, _, _ = extent_of("algorithms", (), quick=arguments.quick)
    if not arguments.summary:
        wanted = [case for case in cases() if case[0] in arguments.tasks and case[1] in arguments.algorithms]
        train(wanted[:8] if arguments.quick else wanted, store, quick=arguments.quick)
    curves = load(store, quick=arguments.quick)
    require_runs("algorithms", curves)
    for name, envs in (("gymnasium", list(GYMNASIUM)), ("mujoco", list(MUJOCO))):
        plot({env: curves[env] for env in envs if env in curves}, folder / f"{name}.png")
    write_csv(folder / "runs.csv", COLUMNS, rows(curves))
    (folder / "README.md").write_text(summary(curves))
    print((folder / "README.md").read_text())


def cases() -> Iterator[tuple[str, str, int]]:
    """Task, algorithm and seed of every run; seeds outermost: stopped early, everything has some."""
    for seed in range(10):
        for env in (*GYMNASIUM, *MUJOCO):
            for algorithm in ALL:
                if seed in seeds_of(env, algorithm):
                    yield env, algorithm, seed


def _job(env: str, algorithm: str, seed: int, *, quick: bool):
    made = job(env, algorithm, seed)
    return made._replace(settings={**made.settings, "total_steps": 20_000, "eval_every": 5_000}) if quick else made


def train(wanted: Sequence[tuple[str, str, int]], store: Store, *, quick: bool) -> None:
    """Runs what is missing: those of one actor side by side, then those that need all cores."""
    together = [case for case in wanted if case[1] != "a3c"]
    train_all([_job(*case, quick=quick) for case in together], store=store)
    train_all([_job(*case, quick=quick) for case in wanted if case[1] == "a3c"], store=store, workers=1)


def load(store: Store, *, quick: bool) -> Curves:
    found: dict[str, dict[str, list[Curve]]] = {}
    for case in cases():
        curve = store.find(_job(*case, quick=quick))
        if curve is not None:
            found.setdefault(case[0], {}).setdefault(case[1], []).append(curve)
    return found


def plot(curves: Curves, path: Path) -> None:
    """Returns against steps in the first row of each block of tasks, against seconds in the second."""
    if not curves:
        return
    title = "Interquartile means over seeds, with 95 % bootstrap intervals shaded"
    wide = min(len(curves), 5)
    blocks = [list(curves)[start : start + wide] for start in range(0, len(curves), wide)]
    figure, axes = panels(2 * len(blocks), wide, title)
    colors = colors_of(ALL)
    for number, block in enumerate(blocks):
        for row, axis in enumerate(("env_steps", "wall_seconds")):
            for column, env in enumerate(block):
                draw_curves(axes[2 * number + row, column], curves[env], colors, title=env, axis=axis)
            for column in range(len(block), wide):
                axes[2 * number + row, column].set_visible(False)
    common_legend(figure)
    save(figure, path)


def best_evaluation(curve: Curve) -> float:
    return float(np.nanmax(curve["eval_return"]))


def last_evaluation(curve: Curve) -> float:
    known = curve["eval_return"][~np.isnan(curve["eval_return"])]
    return float(known[-1])


def rows(curves: Curves) -> Iterator[tuple[object, ...]]:
    for env, by_algorithm in curves.items():
        for algorithm, runs in by_algorithm.items():
            for seed, curve in enumerate(runs):
                figures = (of(curve) for of in (area, final, best_evaluation, last_evaluation, seconds))
                yield env, algorithm, seed, int(curve["env_steps"][-1]), *(f"{value:.5g}" for value in figures)


def summary(curves: Curves) -> str:
    lines = [
        "# A family of algorithms",
        "",
        f"`python experiments/algorithms.py` on {machine()}. Each run is a process with one actor, as many at once as "
        "there are cores (a3c: two actors, alone); seconds are medians over seeds of what collecting and learning "
        "took. The runs are of several days, on which the same run took up to twice as long: seconds tell no small "
        "differences. Returns are interquartile means over seeds (of three seeds: means), with 95 % bootstrap "
        "intervals; area is the mean return over the whole run, final that of the exploring policy over the last 5 %, "
        "best and last evaluation are means of 10 deterministic episodes, best over training. Settings are the "
        f"defaults; {'; '.join(exceptions())}.",
        "",
        "![Gymnasium](gymnasium.png)",
        "![MuJoCo](mujoco.png)",
        "",
    ]
    return "\n".join([*lines, *asked(curves), *against_published(curves), *table(curves)]) + "\n"


def exceptions() -> Iterator[str]:
    """Where settings are not the defaults."""
    for (env, algorithm), settings in TUNED.items():
        words = ", ".join(f"{name}={value}" for name, value in settings.items())
        yield f"on {env} {algorithm or 'all'} has `{words}`"


def asked(curves: Curves) -> Iterator[str]:
    yield from ("## Asked", "", "| task | asked | algorithm | best evaluation of each seed | reached |")
    yield "| --- | --- | --- | --- | --- |"
    for env, least, algorithms, who in ASKED:
        for algorithm in algorithms:
            runs = curves.get(env, {}).get(algorithm)
            if runs:
                best = [best_evaluation(curve) for curve in runs]
                shown, reached = ", ".join(f"{value:.0f}" for value in best), sum(value >= least for value in best)
                yield f"| {env} | {least}, {who} | {algorithm} | {shown} | {reached} of {len(best)} seeds |"
    yield ""


def against_published(curves: Curves) -> Iterator[str]:
    yield from (
        "## Against Tianshou's table at one million steps",
        "",
        "Best over training of the mean over seeds of the deterministic evaluations; Ant and Humanoid in version 4.",
        "",
        "| task | ppo | published | a2c | published | seeds (ppo, a2c) |",
        "| --- | --- | --- | --- | --- | --- |",
    )
    of_others = published()
    ahead = {"ppo": 0, "a2c": 0}
    known = {"ppo": 0, "a2c": 0}
    for env in MUJOCO:
        theirs, cells, counts = of_others[env.split("-")[0]], [], []
        for algorithm in ("ppo", "a2c"):
            mean, std = (float(theirs[f"tianshou_{algorithm}_{what}"]) for what in ("mean", "std"))
            runs = curves.get(env, {}).get(algorithm, [])
            counts.append(str(len(runs)))
            cells.append("")
            if runs:
                ours, spread = best_of_mean(runs)
                verdict = "" if ours >= mean else ", below" + (" by more than one std" if ours < mean - std else "")
                cells[-1] = f"{ours:.1f} ± {spread:.1f}{verdict}"
                ahead[algorithm] += ours >= mean
                known[algorithm] += 1
            cells.append(f"{mean} ± {std}")
        yield f"| {env} | {' | '.join(cells)} | {', '.join(counts)} |"
    yield from ("", f"At or above: ppo {ahead['ppo']} of {known['ppo']}, a2c {ahead['a2c']} of {known['a2c']}.", "")


def table(curves: Curves) -> Iterator[str]:
    yield from (
        "## All runs",
        "",
        "| task, thousand steps | algorithm | area | final | best evaluation | seconds | seeds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    )
    for env, by_algorithm in curves.items():
        for algorithm, runs in by_algorithm.items():
            yield row_of(f"{env}, {total_steps(env) // 1000:,}", algorithm, runs, (area, final, best_evaluation))


if __name__ == "__main__":
    main()
