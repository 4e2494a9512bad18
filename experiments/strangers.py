"""Environments of other packages, trained as their users would.

    python experiments/strangers.py [PACKAGE ...]

Installs each package into a folder of its own beside the present environment (needs a package index), and trains one of
its environments with the default settings for 20,000 steps, or for fewer where a step takes long. Packages that are in
the table are not tried again.
Written to experiments/results/strangers/.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from common.tables import append_line, read_lines

RESULTS = Path(__file__).parent / "results" / "strangers"
STEPS, MINUTES = 20_000, 10
# Runs in a process that sees the package after everything that is installed.
TRAIN = """
import json, sys
sys.path.append(sys.argv[1])
import jaxtrpo
{before}
result = jaxtrpo.train({env}, total_steps={steps}, seed=100, progress=False)
metrics = result.metrics
returns = [float(value) for value in metrics["return_100"] if value == value]
print(json.dumps({{
    "steps_per_second": round(float(metrics["env_steps"][-1] / metrics["wall_seconds"][-1])),
    "first": returns[0] if returns else None,
    "last": returns[-1] if returns else None,
    "masked": result.policy.masked,
}}))
"""


class Stranger(NamedTuple):
    """An environment of another package."""

    requirement: str  # what pip installs, without what is there already
    env: str  # expression in Python
    before: str = ""  # lines of Python
    steps: int = STEPS


PACKAGES = {
    "ale-py": Stranger("ale-py", '"ALE/Pong-v5", env_options={"obs_type": "ram"}'),
    "flappy-bird-gymnasium": Stranger(
        "flappy-bird-gymnasium pygame", '"flappy_bird_gymnasium:FlappyBird-v0", env_options={"use_lidar": False}'
    ),
    "gym-anytrading": Stranger("gym-anytrading pandas matplotlib", '"gym_anytrading:stocks-v0"'),
    "gymnasium-robotics": Stranger("gymnasium-robotics", '"PointMaze_UMaze-v3"'),
    "gymnax": Stranger("gymnax six", '"gymnax:CartPole-v1"'),
    "highway-env": Stranger("highway-env", '"highway-fast-v0"', steps=2_048),
    "minigrid": Stranger(
        "minigrid",
        "make",
        "import gymnasium, minigrid.wrappers\n"
        'def make():\n    return minigrid.wrappers.FlatObsWrapper(gymnasium.make("MiniGrid-Empty-5x5-v0"))',
    ),
    "mo-gymnasium": Stranger(
        "mo-gymnasium",
        "make",
        "import mo_gymnasium, numpy\n"
        'def make():\n    env = mo_gymnasium.make("mo-mountaincar-v0")\n'
        "    return mo_gymnasium.wrappers.LinearReward(env, numpy.ones(3) / 3)",
    ),
    "pettingzoo": Stranger(
        "pettingzoo supersuit pygame pymunk",
        "make",
        "import supersuit\nfrom pettingzoo.sisl import pursuit_v5\n"
        "def make():\n    env = supersuit.pettingzoo_env_to_vec_env_v1(pursuit_v5.parallel_env())\n"
        '    return supersuit.concat_vec_envs_v1(env, 2, base_class="gymnasium")',
        steps=40_000,  # episodes are long
    ),
    "pybullet": Stranger("pybullet-envs-gymnasium", '"pybullet_envs_gymnasium:HopperBulletEnv-v0"'),
    "gym-pusht": Stranger("gym-pusht", '"gym_pusht:gym_pusht/PushT-v0"'),
    "panda-gym": Stranger("panda-gym", '"PandaReachDense-v3"'),
}


def attempt(package: str) -> dict[str, object]:
    """Installs a package and trains; returns the line of the table."""
    stranger = PACKAGES[package]
    line: dict[str, object] = {"package": package, "env": stranger.env, "steps": stranger.steps, "problem": ""}
    with tempfile.TemporaryDirectory() as folder:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, *stranger.requirement.split()]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            return {**line, "problem": f"not installed: {last_line(done.stderr)}"}
        script = TRAIN.format(before=stranger.before, env=stranger.env, steps=stranger.steps)
        try:
            done = subprocess.run(
                [sys.executable, "-c", script, folder],
                capture_output=True,
                text=True,
                timeout=60 * MINUTES,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {**line, "problem": f"longer than {MINUTES} minutes"}
    if done.returncode:
        return {**line, "problem": last_line(done.stderr)}
    return {**line, **json.loads(done.stdout.splitlines()[-1])}


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1][:200] if text.strip() else "no message"


def summary(lines: list[dict[str, object]]) -> list[str]:
    """Returns the lines of README.md."""

    def number(value: object) -> str:
        return "" if value is None else f"{float(str(value)):,.1f}"

    text = [
        "# Environments of other packages",
        "",
        "Made by `python experiments/strangers.py`: `trpo` with default settings, one run each, compiling counted.",
        "A return is the mean over up to 100 episodes. Other work used the same cores, so speeds are lower bounds.",
        "",
        "| package | environment | steps | steps per second | first return | last return | problem |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for line in sorted(lines, key=lambda line: str(line["package"])):
        speed = f"{line['steps_per_second']:,}" if "steps_per_second" in line else ""
        returns = number(line.get("first")), number(line.get("last"))
        cells = line["package"], f"`{line['env']}`", f"{line.get('steps', STEPS):,}", speed, *returns
        text.append(f"| {' | '.join(map(str, cells))} | {line['problem']} |")
    return text


def main() -> None:
    table = RESULTS / "runs.jsonl"
    RESULTS.mkdir(parents=True, exist_ok=True)
    done = {line["package"] for line in read_lines(table)}
    for package in sys.argv[1:] or PACKAGES:
        if package not in done:
            line = attempt(package)
            print(line, flush=True)
            append_line(table, line)
    (RESULTS / "README.md").write_text("\n".join(summary(read_lines(table))) + "\n")


if __name__ == "__main__":
    main()
