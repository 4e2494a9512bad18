"""Do two actors learn as well as they did at an earlier commit, and as well as one?

    python experiments/two_actors.py [--against fa1a9da] [--quick]

Several actors sum in an order that the compiler chooses, so that two versions of the code give other bits; what is
promised is the same distribution of runs. Both versions train the default settings with the same seeds, in turns; so
does one actor of the code as it lies here. Written to experiments/results/two_actors/.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import scipy.stats

from common.commits import run, then_and_now
from common.comparison import extent_of, interval, options
from common.machine import machine
from common.statistics import interquartile_mean
from common.tables import append_line, read_lines

AGAINST = "fa1a9da"  # the commit before actors gathered what they had seen in one meeting
TASKS = ("HalfCheetah-v5", "Hopper-v5")
SEEDS = tuple(range(10))
STEPS = 300_000
LAST = 0.05  # of a run, over which its return is averaged

Found = Mapping[tuple[str, str], np.ndarray]  # (task, version) -> returns of the seeds


def final_return(rows: list[dict[str, str]]) -> float:
    """Mean return of the episodes in the last part of a run."""
    steps = np.array([float(row["env_steps"]) for row in rows])
    returns = np.array([float(row["mean_return"] or "nan") for row in rows])
    return float(np.nanmean(returns[steps > (1 - LAST) * steps[-1]]))


def measure(against: str, *, seeds: tuple[int, ...], steps: int, path: Path) -> Found:
    """Every run that is not in the file yet, one at a time, and what all of them came to."""
    known = {(line["task"], line["version"], line["seed"]): line["return"] for line in read_lines(path)}
    with then_and_now(against) as (folder, places):
        then, now = places["then"], places["now"]
        versions = {f"two actors, {against}": (then, 2), "two actors": (now, 2), "one actor": (now, 1)}
        for seed in seeds:
            for task in TASKS:
                for version, (code, actors) in versions.items():
                    if (task, version, seed) in known:
                        continue
                    settings = {"algorithm": "trpo", "total_steps": steps, "actors": actors, "seed": seed}
                    out = folder / f"{task}-{seed}-{actors}-{code.name}"
                    found = final_return(run(code, task, settings, out, folder / f"cache-{code.name}"))
                    known[task, version, seed] = found
                    append_line(path, {"task": task, "version": version, "seed": seed, "return": round(found, 2)})
                    print(f"{task} seed {seed}, {version}: {found:.1f}", flush=True)
    return {
        (task, version): np.array([known[task, version, seed] for seed in seeds])
        for task in TASKS
        for version in versions
    }


def table(found: Found) -> Iterator[str]:
    for task in TASKS:
        versions = [version for each, version in found if each == task]
        before = found[task, versions[0]]
        for version in versions:
            returns = found[task, version]
            probability = scipy.stats.mannwhitneyu(returns, before).pvalue
            yield (
                f"| {task} | {version} | {interval(interquartile_mean(returns))} | {np.min(returns):.0f} to "
                f"{np.max(returns):.0f} | {'' if version == versions[0] else f'{probability:.2f}'} |"
            )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--against", default=AGAINST, metavar="COMMIT")
    arguments = parser.parse_args()
    extent = extent_of("two_actors", SEEDS, quick=arguments.quick)
    steps = 20_000 if arguments.quick else STEPS
    found = measure(arguments.against, seeds=tuple(extent.seeds), steps=steps, path=extent.folder / "returns.jsonl")
    lines = [
        "# Two actors, before and after",
        "",
        f"`python experiments/two_actors.py` on {machine()}: default settings, {steps:,} steps, {len(extent.seeds)} "
        "seeds; returns of the exploring policy over the last 5 % of a run, interquartile means with 95 % intervals. "
        "The last column is the probability of ranks at least as different from those of the earlier commit if both "
        "have the same distribution (Mann & Whitney 1947, two-sided).",
        "",
        "| task | | return | all seeds | p |",
        "| --- | --- | --- | --- | --- |",
        *table(found),
    ]
    (extent.folder / "README.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
