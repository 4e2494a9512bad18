"""Does the time of an update follow its steps, and is anything compiled again while batches change?

    python experiments/update_time.py [--quick]

One training run of HalfCheetah in which steps per update grow from 1,024 to 20,480 while max KL falls. The medians of
seconds per update are fitted with a line, and compilations after the first update are counted. Written to
experiments/results/update_time/.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import jax
import numpy as np
from scipy.stats import linregress

from common.comparison import extent_of, options
from common.machine import machine
from common.plots import panels, save
from common.tables import write_csv
from jaxtrpo.adapt import linear
from jaxtrpo.train import train

COMPILED = "/jax/core/compile/backend_compile_duration"
TASK = "HalfCheetah-v5"
SMALLEST, LARGEST = 1_024, 20_480  # steps per update
LEVELS = 12  # batch sizes that the line is fitted to
PARTS = ("collect_seconds", "learn_seconds")


class Found(NamedTuple):
    """What one run showed."""

    steps: np.ndarray  # per update, mean of each level
    seconds: dict[str, np.ndarray]  # medians of each level, by part
    compiled: int  # programs between the first update and the last


def measure(total_steps: int) -> Found:
    moments: list[float] = []  # when something was compiled

    def note(name: str, seconds: float, **_: object) -> None:
        if name == COMPILED:
            moments.append(time.perf_counter())

    jax.monitoring.register_event_duration_secs_listener(note)
    rule = linear(over=int(0.9 * total_steps), steps_per_update=LARGEST, max_kl=0.001)
    begin = time.perf_counter()
    metrics = train(TASK, total_steps=total_steps, adapt=rule, progress=False).metrics
    during = np.array(moments) - begin
    compiled = np.sum((during > metrics["wall_seconds"][0]) & (during < metrics["wall_seconds"][-1]))
    steps = metrics["steps_per_update"][1:]
    level = np.clip((LEVELS * (steps - SMALLEST) / (LARGEST - SMALLEST)).astype(int), 0, LEVELS - 1)
    known = np.unique(level)
    seconds = {part: metrics[part][1:] for part in PARTS}
    seconds["update"] = sum(seconds.values())
    return Found(
        np.array([steps[level == each].mean() for each in known]),
        {part: np.array([np.median(values[level == each]) for each in known]) for part, values in seconds.items()},
        int(compiled),
    )


def main() -> None:
    arguments = options(__doc__).parse_args()
    extent = extent_of("update_time", (), quick=arguments.quick)
    found = measure(400_000 if arguments.quick else 3_000_000)
    line = linregress(found.steps, found.seconds["update"])
    rows = zip(found.steps, *found.seconds.values(), strict=True)
    names = ("steps_per_update", *found.seconds)
    write_csv(extent.folder / "seconds.csv", names, ([f"{value:.5g}" for value in row] for row in rows))
    figure, axes = panels(1, 1, "Does the time of an update follow its steps?")
    place = axes[0, 0]
    for part, seconds in found.seconds.items():
        place.plot(found.steps, seconds, "o", markersize=3, label=part.removesuffix("_seconds"))
    place.plot(found.steps, line.intercept + line.slope * found.steps, linewidth=0.8, label="line fitted to update")
    place.set(title=f"{TASK}, one run", xlabel="environment steps of an update", ylabel="seconds, median")
    place.legend(fontsize=7)
    save(figure, extent.folder / "seconds.png")
    text = f"""# Does the time of an update follow its steps?

`python experiments/update_time.py` on {machine()}. One run of {TASK} on all cores whose steps per update grow from
{SMALLEST:,} to {LARGEST:,} and whose max KL falls from 0.01 to 0.001. Medians of {len(found.steps)} levels of batch
size.

![Seconds against steps](seconds.png)

- seconds per update = {line.intercept:.4f} + {line.slope:.4e} x steps, R^2 = {line.rvalue**2:.4f}
- programs compiled between the first update and the last: {found.compiled}
"""
    (extent.folder / "README.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
