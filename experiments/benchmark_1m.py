"""What one default configuration of `trpo` learns in one million steps on nine tasks, against published results.

    python experiments/benchmark_1m.py [--quick] [--summary]

The policy is evaluated on 10 deterministic episodes every 20,000 steps; the figure of a task is the best over training
of the mean over seeds, as in Tianshou's benchmark. Published results of Ant and Humanoid are of versions whose contact
forces were always zero; version 4, which does not make them cost anything, comes nearest and stands beside version 5.
Written to experiments/results/benchmark_1m/.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from common.comparison import extent_of, options_of_runs, require_runs
from common.machine import machine
from common.plots import panels, save
from common.published import SB3_TRPO
from common.runs import train_all
from common.store import Curve, Job
from common.tables import write_csv
from jaxtrpo.policies.heads import LESS_INITIAL_LOG_STD
from jaxtrpo.training.defaults import DISCOUNT_OF_LONG_EPISODES, NOISE_CORRELATION_OF_LONG_EPISODES

SEEDS = (0, 1, 2, 3, 4)
# Published at one million steps: the best known mean, who reached it, and Tianshou's TRPO, 10 seeds.
PUBLISHED = {
    "HalfCheetah-v5": (4471.2, "Tianshou", 4471.2),
    "Hopper-v5": (SB3_TRPO["Hopper"], "sb3-contrib", 2046.0),
    "Walker2d-v5": (SB3_TRPO["Walker2d"], "sb3-contrib", 3826.7),
    "Ant-v4": (SB3_TRPO["Ant"], "sb3-contrib", 2866.7),
    "Ant-v5": (SB3_TRPO["Ant"], "sb3-contrib", 2866.7),
    "Humanoid-v4": (810.1, "Tianshou", 810.1),
    "Humanoid-v5": (810.1, "Tianshou", 810.1),
    "Swimmer-v5": (359, "sb3-contrib, discount 0.9999", 40.9),
    "Reacher-v5": (-4.5, "Tianshou's NPG", -5.1),
    "InvertedPendulum-v5": (1000, "Tianshou", 1000.0),
    "InvertedDoublePendulum-v5": (9243.2, "Tianshou's NPG", 8435.2),
}

# What the default is where episodes never terminate and are that long, and where actions have 8 to 11 coordinates; jobs
# have those of all other tasks. The runs of Ant-v4 have the noise of all other tasks (NOTES.md).
LONG = {"discount": DISCOUNT_OF_LONG_EPISODES, "noise_correlation": NOISE_CORRELATION_OF_LONG_EPISODES}
LESS = {"policy": f"mlp(initial_log_std={LESS_INITIAL_LOG_STD})"}
DEFAULTS = {
    "HalfCheetah-v5": LONG,
    "Swimmer-v5": LONG,
    "Ant-v5": LESS,
}

Evaluations = tuple[np.ndarray, np.ndarray]  # environment steps and returns, both [seed, point]


def main() -> None:
    arguments = options_of_runs(__doc__).parse_args()
    extent = extent_of("benchmark_1m", SEEDS, quick=arguments.quick)
    every, envs = 20_000, list(PUBLISHED)
    if arguments.quick:
        every, envs = 10_000, envs[:2]
    jobs = [
        Job(env, seed, {"eval_every": every, **DEFAULTS.get(env, {}), **extent.settings})
        for seed in extent.seeds
        for env in envs
    ]
    found: dict[str, Evaluations] = {}
    curves = train_all(jobs, store=extent.store, only_known=arguments.summary)
    for env in envs:
        known = [curve for job, curve in zip(jobs, curves, strict=True) if job.env == env and curve is not None]
        if known:
            found[env] = evaluations(known)
    require_runs("benchmark_1m", found)
    plot(found, extent.folder / "curves.png")
    write_csv(extent.folder / "evaluations.csv", ("env", "seed", "env_steps", "eval_return"), rows(found))
    (extent.folder / "README.md").write_text(summary(found))
    print(summary(found))


def evaluations(curves: Sequence[Curve]) -> Evaluations:
    """Those that every run has; where updates grow, seeds differ by a few thousand steps in when they come."""
    steps, returns = (np.stack([curve[name] for curve in curves]) for name in ("env_steps", "eval_return"))
    made = ~np.isnan(returns).any(axis=0)
    return steps[:, made], returns[:, made]


def plot(found: dict[str, Evaluations], path: Path) -> None:
    figure, axes = panels(
        -(-len(found) // 3), 3, "Default settings, one million steps: mean over seeds, one standard error shaded"
    )
    for place, (env, (steps, returns)) in zip(axes.flat, found.items(), strict=False):
        best, source, tianshou = PUBLISHED[env]
        at, mean = steps.mean(axis=0), returns.mean(axis=0)
        place.plot(at, mean, label=f"jaxtrpo ({len(returns)} seeds)")
        if len(returns) > 1:
            error = returns.std(axis=0, ddof=1) / len(returns) ** 0.5
            place.fill_between(at, mean - error, mean + error, alpha=0.2, linewidth=0)
        place.axhline(tianshou, color="0.5", linestyle="--", label="Tianshou TRPO, best over training")
        if best != tianshou:
            place.axhline(best, color="0.2", linestyle=":", label=f"best published ({source})")
        place.set(title=env, xlabel="environment steps", ylabel="return of the deterministic policy")
        place.grid(alpha=0.3)
        place.legend(fontsize=6)
    for place in axes.flat[len(found) :]:
        place.set_visible(False)
    save(figure, path)


def rows(found: dict[str, Evaluations]) -> Iterator[tuple[str, int, int, str]]:
    for env, (steps, returns) in found.items():
        for seed, curve in enumerate(zip(steps, returns, strict=True)):
            for at, value in zip(*curve, strict=True):
                yield env, seed, int(at), f"{value:.5g}"


def summary(found: dict[str, Evaluations]) -> str:
    lines = [
        "# One default configuration, one million steps",
        "",
        f"`python experiments/benchmark_1m.py` on {machine()}: 10 deterministic episodes every 20,000 steps.",
        "",
        "![Learning curves](curves.png)",
        "",
        "| task | best over training of the mean over seeds | standard deviation there | at the end | Tianshou TRPO "
        "| best published | seeds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for env, (_, returns) in found.items():
        best, source, tianshou = PUBLISHED[env]
        mean = returns.mean(axis=0)
        at = int(mean.argmax())
        spread = f"{returns[:, at].std(ddof=1):.1f}" if len(returns) > 1 else ""
        lines.append(
            f"| {env} | {mean[at]:.1f} | {spread} | {mean[-1]:.1f} | {tianshou} | {best} ({source}) | {len(returns)} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
