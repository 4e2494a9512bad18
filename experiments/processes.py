"""What do two processes cost where one could do it, and what happens if one of them is killed?

    pip install '.[experiments]'
    python experiments/processes.py [--quick]

HalfCheetah is trained by one process with two actors and by two processes with one actor each, in turns. Then runs of
two processes are killed (SIGKILL of one of them) at random moments and go on with `--resume`; what they end with is
compared with a run that was left alone. Written to experiments/results/processes/.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from common.comparison import extent_of, options
from common.machine import machine
from common.runs import as_flags, differences
from jaxtrpo.runs.checkpoint import load_checkpoint

KILLS, ROUNDS = 20, 3
SIZES = {1_024: 16, 20_480: 128}  # steps an update, environments
UPDATES = {1_024: 400, 20_480: 24}
SKIPPED = 4  # the first updates, which wait for what is compiled
TASK = {"steps_per_update": 256, "total_steps": 40_960, "seed": 3, "checkpoint_seconds": 0, "adapt": "fixed"}
JAXTRPO = (sys.executable, "-m", "jaxtrpo")
LAUNCH = (*JAXTRPO, "launch", "--processes", "2", "--")


def train(command: tuple[str, ...], env: str, out: Path, **settings) -> list[str]:
    return [*command, "train", env, "--quiet", "--resume", "--out", str(out), *as_flags(settings)]


def steps_per_second(command: tuple[str, ...], out: Path, steps: int, updates: int) -> float:
    settings = {"steps_per_update": steps, "num_envs": SIZES[steps], "adapt": "fixed", "total_steps": steps * updates}
    subprocess.run(train(command, "HalfCheetah-v5", out, actors=2, **settings), check=True, capture_output=True)
    return steps / float(np.median(np.diff(load_checkpoint(out).metrics["wall_seconds"][SKIPPED:])))


def speed(folder: Path, rounds: int, share: float) -> list[str]:
    lines = ["| steps an update | one process, steps/s | two processes | ratio, median of rounds (lowest, highest) |"]
    lines.append("| --- | --- | --- | --- |")
    for steps in SIZES:
        updates = max(int(UPDATES[steps] * share), 2 * SKIPPED)
        found = [
            [
                steps_per_second(command, folder / f"{steps}-{number}-{which}", steps, updates)
                for which, command in enumerate((JAXTRPO, LAUNCH))
            ]
            for number in range(rounds)
        ]
        one, two = (statistics.median(each) for each in zip(*found, strict=True))
        ratios = sorted(two / one for one, two in found)
        shown = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}, {ratios[-1]:.2f})"
        lines.append(f"| {steps:,} | {one:,.0f} | {two:,.0f} | {shown} |")
    return lines


def killed(folder: Path, number: int, whole: Path, updates: int, rng: random.Random) -> tuple[bool, float, bool]:
    """Kills one of two processes: whether the launcher said so, seconds until all was over, whether it ended alike."""
    out = folder / f"killed-{number}"
    with subprocess.Popen(
        train(LAUNCH, "InvertedPendulum-v5", out, **TASK), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as launcher:
        some, path = rng.randrange(1, updates - 20), out / "metrics.csv"
        while launcher.poll() is None and not (path.exists() and path.read_text().count("\n") > some):
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.02))  # about an update
        children = subprocess.check_output(["pgrep", "-P", str(launcher.pid)], text=True).split()
        begun = time.perf_counter()
        os.kill(sorted(map(int, children))[number % 2], signal.SIGKILL)
        assert launcher.stderr is not None
        said = launcher.stderr.read()
    over = time.perf_counter() - begun
    subprocess.run(train(LAUNCH, "InvertedPendulum-v5", out, **TASK), check=True, capture_output=True)
    sentence = f"process {number % 2} of 2 was ended by SIGKILL; --resume resumes from the last checkpoint in {out}"
    return sentence in said and launcher.returncode == 1, over, not differences(out, whole)


def kills(folder: Path, number: int) -> list[str]:
    whole = folder / "whole"
    subprocess.run(train(LAUNCH, "InvertedPendulum-v5", whole, **TASK), check=True, capture_output=True)
    updates, rng = len(load_checkpoint(whole).metrics["update"]), random.Random(0)
    found = [killed(folder, each, whole, updates, rng) for each in range(number)]
    said, over, same = zip(*found, strict=True)
    return [
        f"Of {number} runs, each killed once (SIGKILL of one process or the other), {sum(said)} ended with the "
        f"sentence, after {statistics.median(over):.1f} seconds (at most {max(over):.1f}), and {sum(same)} went on to "
        "the bits of the run that was left alone."
    ]


def main() -> None:
    arguments = options(__doc__).parse_args()
    place = extent_of("processes", (), quick=arguments.quick).folder
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        lines = [
            "# Several processes that are one training",
            "",
            f"`python experiments/processes.py` on {machine()}.",
            "",
            "HalfCheetah-v5 with two actors, of one process or of two; steps/s of whole updates (collecting, learning "
            "and writing), in turns.",
            "",
            *speed(folder, 1 if arguments.quick else ROUNDS, 0.1 if arguments.quick else 1.0),
            "",
            *kills(folder, 2 if arguments.quick else KILLS),
        ]
    place.mkdir(parents=True, exist_ok=True)
    (place / "README.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
