"""BASELINE, not part of jaxtrpo: CleanRL's PPO on an Atari game.

    python experiments/baselines/cleanrl_atari.py --source /path/to/cleanrl --task BreakoutNoFrameskip-v4 \\
        --total-steps 20000 --seed 0

Runs `cleanrl/ppo_atari.py` of a checkout, as it is and with its settings, with the interpreter that runs this script,
which must have what CleanRL needs. Prints one line of JSON: environment steps, and seconds from the end of the first
update to the end of the last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = 1_024  # of an update
# Its environments are registered by importing ale_py.
PROGRAM = "import runpy, sys, ale_py; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="a checkout of CleanRL")
    parser.add_argument("--task", required=True)
    parser.add_argument("--total-steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    given = parser.parse_args()
    source = given.source.resolve()
    words = [
        "--env-id",
        given.task,
        "--total-timesteps",
        str(given.total_steps),
        "--seed",
        str(given.seed),
        "--no-cuda",
    ]
    command = [sys.executable, "-u", "-c", PROGRAM, str(source / "cleanrl" / "ppo_atari.py"), *words]
    environ = {**os.environ, "PYTHONPATH": str(source)}
    times = []
    # It writes a folder `runs` where it is started.
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, env=environ, cwd=folder, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("SPS:"):  # printed at the end of each update
                times.append(time.perf_counter())
    if process.returncode:
        raise SystemExit(process.returncode)
    print(json.dumps({"steps": (len(times) - 1) * STEPS, "seconds": round(times[-1] - times[0], 3)}))


if __name__ == "__main__":
    main()
