"""Does a run that is killed at any moment go on to the bit, and what do checkpoints cost?

    pip install '.[experiments]'
    python experiments/killed.py [--quick]

A run with a checkpoint after every update is killed (SIGKILL) at random moments, on one and on two actors, and goes on
with `--resume`; what it ends with is compared with a run that was left alone. Then HalfCheetah is trained with
checkpoints at several intervals, in turns. Written to experiments/results/killed/.
"""

from __future__ import annotations

import csv
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from common.comparison import extent_of, options
from common.machine import machine
from common.runs import TRAIN, as_flags, differences
from common.tables import write_csv
from jaxtrpo.runs.checkpoint import load_checkpoint

KILLS, ROUNDS = 25, 5  # of each number of actors; of each interval
TASK = {"steps_per_update": 256, "total_steps": 40_960, "seed": 3, "checkpoint_seconds": 0}
CHEETAH = {"algorithm": "trpo", "total_steps": 200_000, "seed": 3}
INTERVALS = (1e6, 60, 1)  # seconds; the first is never


def command(env: str, out: Path, **settings) -> list[str]:
    return [*TRAIN, env, "--quiet", "--resume", "--out", str(out), *as_flags(settings)]


def environment(actors: int) -> dict[str, str]:
    return {**os.environ, "JAX_NUM_CPU_DEVICES": str(actors)}


def killed(actors: int, number: int, folder: Path, rng: random.Random) -> tuple[bool, bool, int]:
    """Kills one run: whether it ended alike, whether a file was half written, and updates that were saved."""
    whole = folder / f"whole-{actors}"
    start = {"env": environment(actors), "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    words = {**TASK, "actors": actors}
    if not whole.exists():
        subprocess.run(command("InvertedPendulum-v5", whole, **words), check=True, **start)
    with (whole / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    lasts = float(rows[-1]["wall_seconds"]) - float(rows[0]["wall_seconds"])
    out = folder / f"killed-{actors}-{number}"
    with subprocess.Popen(command("InvertedPendulum-v5", out, **words), **start) as process:
        while not (out / "metrics.csv").exists() and process.poll() is None:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, lasts))
        process.kill()
    half = any(out.glob(".*"))
    saved = len(load_checkpoint(out).metrics.get("update", ()))
    subprocess.run(command("InvertedPendulum-v5", out, **words), check=True, **start)
    alike = not differences(whole, out)
    shutil.rmtree(out)
    return alike, half, saved


def cost(seconds: float, folder: Path) -> float:
    """Seconds from the first update to the last with such an interval."""
    out = folder / "cost"
    words = command("HalfCheetah-v5", out, checkpoint_seconds=seconds, **CHEETAH)
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with (out / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    shutil.rmtree(out)
    return float(rows[-1]["wall_seconds"]) - float(rows[0]["wall_seconds"])


def main() -> None:
    arguments = options(__doc__).parse_args()
    extent, rng = extent_of("killed", (), quick=arguments.quick), random.Random(0)
    table = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for actors in (1, 2):
            for number in range(2 if arguments.quick else KILLS):
                table.append((actors, number, *killed(actors, number, folder, rng)))
                print(*table[-1], flush=True)
        rounds = 1 if arguments.quick else ROUNDS
        took = [[cost(seconds, folder) for seconds in INTERVALS] for _ in range(rounds + 1)][1:]  # the first compiles
    write_csv(extent.folder / "kills.csv", ("actors", "number", "alike", "half_written", "updates_saved"), table)
    alike, half = (sum(row[i] for row in table) for i in (2, 3))
    lines = [
        "# Killed runs, and what checkpoints cost",
        "",
        f"`python experiments/killed.py` on {machine()}.",
        "",
        f"- {alike} of {len(table)} runs that were killed at random moments, on one and on two actors, ended to the "
        f"bit as the one that was left alone; {half} were killed while a file was being written.",
        f"- 200,000 steps of HalfCheetah with checkpoints over the same without, medians of {rounds} rounds:",
        "",
        "| seconds between checkpoints | ratio of seconds |",
        "| --- | --- |",
    ]
    for i, seconds in enumerate(INTERVALS[1:], 1):
        lines.append(f"| {seconds} | {statistics.median(row[i] / row[0] for row in took):.3f} |")
    (extent.folder / "README.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
