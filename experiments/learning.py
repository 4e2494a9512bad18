"""What the default settings learn in one million steps, against published results.

    python experiments/learning.py [--seeds 0 1 2 3 4] [--envs HalfCheetah-v5 ...]

Every run is a process of its own with one actor, as many at once as there are cores. The policy is evaluated on 10
deterministic episodes every 20,000 steps; the figure of a task is the best over training of the mean over seeds. A
finished run is kept in experiments/results/learning/evaluations.csv with a hash of its settings, so that starting again
only fills gaps.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from jaxtrpo.config import Config

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "learning"
# What the defaults are asked to reach: Tianshou's TRPO, best over training of the mean over 10 seeds.
ASKED = {
    "HalfCheetah-v5": 4471,
    "Hopper-v5": 2046,
    "Walker2d-v5": 3827,
    "Reacher-v5": -5.1,
    "InvertedPendulum-v5": 1000,
    "Swimmer-v5": 41,
}


Curve = list[tuple[int, float]]  # (environment steps, mean return) of every evaluation of a run


class Runs:
    """The finished runs, one line an evaluation in evaluations.csv; what is there already is not run again."""

    columns = ("env", "seed", "settings", "env_steps", "eval_return")

    def __init__(self) -> None:
        self.file, self.lock = RESULTS / "evaluations.csv", threading.Lock()
        self.curves: dict[tuple[str, int, str], Curve] = {}
        if self.file.exists():
            with self.file.open() as file:
                for row in csv.DictReader(file):
                    key = row["env"], int(row["seed"]), row["settings"]
                    self.curves.setdefault(key, []).append((int(row["env_steps"]), float(row["eval_return"])))

    def get(self, env: str, seed: int, settings: dict) -> Curve:
        """Trains if that has not been done with these settings and the same defaults."""
        settings = {"actors": 1, "eval_every": 20_000, "total_steps": 1_000_000, **settings}
        known = json.dumps([dataclasses.asdict(Config()), settings], sort_keys=True)
        key = env, seed, hashlib.sha256(known.encode()).hexdigest()[:12]
        if key not in self.curves:
            curve = train(env, {"seed": seed, **settings})
            with self.lock:
                self.curves[key] = curve
                self._append(key, curve)
                print(f"finished {env} seed {seed}: best {max(value for _, value in curve):.1f}", flush=True)
        return self.curves[key]

    def _append(self, key: tuple[str, int, str], curve: Curve) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        new = not self.file.exists()
        with self.file.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if new:
                writer.writerow(self.columns)
            writer.writerows([*key, steps, round(value, 3)] for steps, value in curve)


def train(env: str, settings: dict) -> Curve:
    """One training run in a process of its own."""
    flags = [word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "jaxtrpo", "train", env, "--out", out, "--quiet", *flags]
        subprocess.run(command, check=True, env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"}, stdout=subprocess.DEVNULL)
        with (Path(out) / "metrics.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row["eval_return"]]
    return [(int(row["env_steps"]), float(row["eval_return"])) for row in rows]


def summarise(curves: dict[str, dict[int, Curve]]) -> str:
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
        spread = f"{returns[:, best].std(ddof=1):.1f}" if len(returns) > 1 else "-"
        lines.append(
            f"| {env} | {mean[best]:.1f} | {ASKED.get(env, '')} | {spread} | {mean[-1]:.1f} "
            f"| {', '.join(map(str, by_seed))} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--envs", nargs="+", default=list(ASKED))
    parser.add_argument(
        "--settings", type=json.loads, default={}, help="JSON, to try others than the defaults; no summary is written"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--summary", action="store_true", help="train nothing; summarise the runs that are there")
    arguments = parser.parse_args()
    settings, runs = dict(arguments.settings), Runs()
    if arguments.summary:
        done = {(env, seed): curve for (env, seed, _), curve in runs.curves.items()}
        curves = {env: {seed: curve for (name, seed), curve in done.items() if name == env} for env in arguments.envs}
        (RESULTS / "README.md").write_text(summarise({env: found for env, found in curves.items() if found}))
        return
    jobs = [(env, seed) for seed in arguments.seeds for env in arguments.envs]  # stopped early, every task has some
    with ThreadPoolExecutor(arguments.workers) as pool:
        found = dict(zip(jobs, pool.map(lambda job: runs.get(*job, settings), jobs), strict=True))
    text = summarise({env: {seed: found[env, seed] for seed in arguments.seeds} for env in arguments.envs})
    print(text)
    if not settings:
        (RESULTS / "README.md").write_text(text)


if __name__ == "__main__":
    main()
