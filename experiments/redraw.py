"""Draws every plot and table again, of the runs that are there; trains nothing.

    python experiments/redraw.py

What was measured by the clock and is no training (throughput, update_time, actors, ...) is written by its own script as
it is measured.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = (
    "algorithms", "benchmark_1m", "max_kl", "steps_per_update", "adaptation", "fresh_seeds", "headline", "simulators",
    "naf", "replay", "pytorch_baseline", "time_to_return",
)  # fmt: skip


def main() -> None:
    for name, *flags in (*((script, "--summary") for script in SCRIPTS), ("pictures",)):
        print(f"{name}.py", flush=True)
        subprocess.run([sys.executable, str(HERE / f"{name}.py"), *flags], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
