"""Does the time of an update follow its steps, and is anything compiled again while batches change?

    python experiments/update_time.py [--quick]

One training run of HalfCheetah in which steps per update go through their whole range again and again, from 1,024 to
20,480, and max KL with them, from 0.01 to 0.001. The medians of seconds per update are fitted with a line, and
compilations after the first update are counted. Sizes take turns because a machine is not equally fast all the time.
Written to experiments/results/update_time/.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import linregress

from common.comparison import extent_of, options
from common.machine import machine
from common.plots import panels, save
from common.tables import write_csv
from jaxtrpo.adapt import Rule
from jaxtrpo.rollout.types import Hyperparameters
from jaxtrpo.training.train import train

COMPILED = "/jax/core/compile/backend_compile_duration"
TASK = "HalfCheetah-v5"
SIZES = np.linspace(1_024, 20_480, 12).astype(int) // 256 * 256  # steps per update, in whole segments
KL = np.geomspace(0.01, 0.001, len(SIZES))
PARTS = ("collect_seconds", "learn_seconds")


class Found(NamedTuple):
    """What one run showed."""

    seconds: dict[str, np.ndarray]  # medians of each size, by part
    compiled: int  # programs between the first update and the last


def through_the_range() -> Rule:
    """Every size once, then all again."""

    def update(
        index: jax.Array, hyperparameters: Hyperparameters, metrics: Mapping[str, jax.Array]
    ) -> tuple[jax.Array, Hyperparameters]:
        index = (index + 1) % len(SIZES)
        max_kl, steps = jnp.asarray(KL, jnp.float32)[index], jnp.asarray(SIZES, jnp.int32)[index]
        return index, {**hyperparameters, "max_kl": max_kl, "steps_per_update": steps}

    return Rule(
        init=lambda hyperparameters: jnp.int32(0),
        update=update,
        max_steps_per_update=int(SIZES[-1]),
        changes=("max_kl", "steps_per_update"),
    )


def measure(rounds: int) -> Found:
    moments: list[float] = []  # when something was compiled

    def note(name: str, seconds: float, **_: object) -> None:
        if name == COMPILED:
            moments.append(time.perf_counter())

    jax.monitoring.register_event_duration_secs_listener(note)
    begin = time.perf_counter()
    metrics = train(TASK, total_steps=int(rounds * SIZES.sum()), adapt=through_the_range(), progress=False).metrics
    during = np.array(moments) - begin
    compiled = np.sum((during > metrics["wall_seconds"][0]) & (during < metrics["wall_seconds"][-1]))
    steps = metrics["steps_per_update"][1:]
    seconds = {part: metrics[part][1:] for part in PARTS}
    seconds["update"] = sum(seconds.values())
    return Found(
        {part: np.array([np.median(values[steps == size]) for size in SIZES]) for part, values in seconds.items()},
        int(compiled),
    )


def main() -> None:
    arguments = options(__doc__).parse_args()
    extent = extent_of("update_time", (), quick=arguments.quick)
    rounds = 3 if arguments.quick else 15
    found = measure(rounds)
    line = linregress(SIZES, found.seconds["update"])
    rows = zip(SIZES, *found.seconds.values(), strict=True)
    names = ("steps_per_update", *found.seconds)
    write_csv(extent.folder / "seconds.csv", names, ([f"{value:.5g}" for value in row] for row in rows))
    figure, axes = panels(1, 1, "Does the time of an update follow its steps?")
    place = axes[0, 0]
    for part, seconds in found.seconds.items():
        place.plot(SIZES, seconds, "o", markersize=3, label=part.removesuffix("_seconds"))
    place.plot(SIZES, line.intercept + line.slope * SIZES, linewidth=0.8, label="line fitted to update")
    place.set(title=f"{TASK}, one run", xlabel="environment steps of an update", ylabel="seconds, median")
    place.legend(fontsize=7)
    save(figure, extent.folder / "seconds.png")
    text = f"""# Does the time of an update follow its steps?

`python experiments/update_time.py` on {machine()}. One run of {TASK} on all
cores whose steps per update go from {SIZES[0]:,} to {SIZES[-1]:,} and whose max KL goes from 0.01 to 0.001, {rounds}
times. Medians of each of the {len(SIZES)} batch sizes.

![Seconds against steps](seconds.png)

- seconds per update = {line.intercept:.4f} + {line.slope:.4e} x steps, R^2 = {line.rvalue**2:.4f}
- programs compiled between the first update and the last: {found.compiled}
"""
    (extent.folder / "README.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
