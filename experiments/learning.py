"""What the default settings learn in one million steps, against published results.

    python experiments/learning.py [--quick] [--seeds 0 1 2 3 4] [--envs HalfCheetah-v5 ...]

Every run is a process of its own with one actor, as many at once as there are cores. The policy is evaluated on 10
deterministic episodes every 20,000 steps; the figure of a task is the best over training of the mean over seeds. A
finished run is kept under experiments/.cache by its settings, so that starting again only fills gaps. Results go to
experiments/results/learning.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
RESULTS, CACHE = HERE / "results" / "learning", HERE / ".cache" / "learning"
# What the defaults are asked to reach: Tianshou's TRPO, best over training of the mean over 10 seeds.
ASKED = {
    "HalfCheetah-v5": 4471,
    "Hopper-v5": 2046,
    "Walker2d-v5": 3827,
    "Reacher-v5": -5.1,
    "InvertedPendulum-v5": 1000,
    "Swimmer-v5": 41,
}


def run(env: str, seed: int, settings: dict) -> list[tuple[int, float]]:
    """(environment steps, mean return) of every evaluation of one training run."""
    settings = {"seed": seed, "actors": 1, "eval_every": 20_000, "total_steps": 1_000_000, **settings}
    name = hashlib.sha256(json.dumps([env, settings, defaults()], sort_keys=True).encode()).hexdigest()[:16]
    out = CACHE / f"{env}-{seed}-{name}"
    if not (out / "policy.msgpack").exists():  # written last
        flags = [word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", str(value))]
        command = [sys.executable, "-m", "jaxtrpo", "train", env, "--out", str(out), "--overwrite", "--quiet", *flags]
        subprocess.run(command, check=True, env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"}, stdout=subprocess.DEVNULL)
        print(f"finished {env} seed {seed}", flush=True)
    with (out / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["eval_return"]]
    return [(int(row["env_steps"]), float(row["eval_return"])) for row in rows]


def defaults() -> dict:
    """Settings that runs are kept by, besides those given."""
    import dataclasses

    from jaxtrpo.config import Config

    return dataclasses.asdict(Config())


def summarise(curves: dict[str, dict[int, list[tuple[int, float]]]]) -> str:
    """A table with a row a task."""
    import jax
    import mujoco

    lines = [
        "# Learning",
        "",
        f"`python experiments/learning.py`: default settings, 1,000,000 steps, evaluated on 10 deterministic episodes "
        f"every 20,000. Python {platform.python_version()}, JAX {jax.__version__}, MuJoCo {mujoco.__version__}. Every "
        "evaluation is in evaluations.csv.",
        "",
        "| task | best over training of the mean over seeds | asked | standard deviation there | at the end | seeds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for env, by_seed in curves.items():
        returns = np.array([[value for _, value in curve] for curve in by_seed.values()])
        mean = returns.mean(axis=0)
        best = int(mean.argmax())
        lines.append(
            f"| {env} | {mean[best]:.1f} | {ASKED.get(env, '')} | {returns[:, best].std():.1f} | {mean[-1]:.1f} "
            f"| {', '.join(map(str, by_seed))} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds of a short run; nothing is written")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--envs", nargs="+", default=list(ASKED))
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON; not the defaults, so nothing is written")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    settings, seeds = dict(arguments.settings), arguments.seeds
    if arguments.quick:
        settings, seeds = {"total_steps": 40_960, **settings}, seeds[:2]
    jobs = [(env, seed) for seed in seeds for env in arguments.envs]  # what is stopped early has every task
    with ThreadPoolExecutor(arguments.workers) as pool:
        found = dict(zip(jobs, pool.map(lambda job: run(*job, settings), jobs), strict=True))
    curves = {env: {seed: found[env, seed] for seed in seeds} for env in arguments.envs}
    text = summarise(curves)
    print(text)
    if settings:
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "README.md").write_text(text)
    with (RESULTS / "evaluations.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["env", "seed", "env_steps", "eval_return"])
        for env, by_seed in curves.items():
            for seed, curve in by_seed.items():
                writer.writerows([env, seed, steps, round(value, 3)] for steps, value in curve)


if __name__ == "__main__":
    main()
