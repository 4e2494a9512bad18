"""How much memory does a long run take, and does it grow?

    pip install '.[experiments]'
    python experiments/memory.py [--quick]

HalfCheetah for ten million steps, 20,480 an update, on all cores, with nothing compiled before; memory is read every
second. Written to experiments/results/memory/.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from common.comparison import extent_of, options
from common.machine import machine
from common.plots import panels, save
from common.runs import TRAIN, as_flags, with_cache
from common.tables import write_csv
from common.watch import watch

TASK, STEPS_PER_UPDATE, TOTAL_STEPS = "HalfCheetah-v5", 20_480, 10_000_000
MINUTE = 60  # after the first, everything has been compiled and every buffer was used
KEEP_EVERY = 30  # seconds, in the table


def main() -> None:
    arguments = options(__doc__).parse_args()
    extent = extent_of("memory", (), quick=arguments.quick)
    total_steps = 1_000_000 if arguments.quick else TOTAL_STEPS
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        settings = {"steps_per_update": STEPS_PER_UPDATE, "adapt": "fixed", "total_steps": total_steps, "out": out}
        command = [*TRAIN, TASK, "--quiet", *as_flags(settings)]
        found = watch(command, metrics=out / "metrics.csv", environment=with_cache(folder))
    seconds, mebibytes = found.memory_seconds, found.memory / 2**20
    kept = np.unique(seconds // KEEP_EVERY, return_index=True)[1]
    rows = ((f"{seconds[i]:.0f}", f"{mebibytes[i]:.1f}") for i in kept)
    write_csv(extent.folder / "memory.csv", ("seconds", "mebibytes"), rows)
    figure, axes = panels(1, 1, f"Memory of a run of {TASK}")
    axes[0, 0].plot(seconds, mebibytes)
    axes[0, 0].set(xlabel="seconds since the command", ylabel="resident, MiB", ylim=(0, None))
    save(figure, extent.folder / "memory.png")
    minute = min(MINUTE, seconds[-1] / 3)  # of a quick try, a third
    warm = np.median(mebibytes[(seconds >= minute) & (seconds < 2 * minute)])
    last = np.median(mebibytes[seconds >= seconds[-1] - minute])
    text = f"""# How much memory does a long run take?

`python experiments/memory.py` on {machine()}: {found.env_steps[-1]:,.0f} steps of {TASK}, {STEPS_PER_UPDATE:,} an
update, {found.seconds[-1]:.0f} seconds.

![Memory](memory.png)

- the most that was resident: {mebibytes.max():.0f} MiB
- median of the second minute: {warm:.0f} MiB; of the last: {last:.0f} MiB
"""
    (extent.folder / "README.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
