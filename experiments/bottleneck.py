"""Where does the time of an update go: collecting, advantages, the policy step or the critic?

    python experiments/bottleneck.py [--quick]

The parts of an update are compiled one by one and timed in turn on real batches, on all cores; medians over rounds.
Written to experiments/results/bottleneck/.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxtrpo.parallel.devices import choose_actors

ACTORS = choose_actors()  # before anything starts JAX

import jax  # noqa: E402

from common.comparison import extent_of, options  # noqa: E402
from common.machine import machine  # noqa: E402
from common.parts import Parts  # noqa: E402
from common.plots import panels, save  # noqa: E402
from common.tables import write_csv  # noqa: E402
from jaxtrpo.rollout.types import LearnerState, TrainState  # noqa: E402

TASKS = ("Reacher-v5", "HalfCheetah-v5", "Humanoid-v5")
SIZES = (1_024, 20_480)  # steps per update
PARTS = ("collect", "advantages", "policy", "critic", "whole learner")


def seconds_of_parts(name: str, steps_per_update: int, rounds: int) -> dict[str, float]:
    """Median seconds of each part of an update, and of the learner compiled as one."""
    parts = Parts(name, steps_per_update)
    seconds: dict[str, list[float]] = {part: [] for part in PARTS}

    def timed(part: str, function: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        found = jax.block_until_ready(function())
        seconds[part].append(time.perf_counter() - begin)
        return found

    state: TrainState = parts.run.state
    lowered = parts.run.update.lower(state)
    collect, learn = lowered.compile_collect(), lowered.compile_learn()
    for _ in range(max(3, rounds * SIZES[0] // steps_per_update) + 1):  # the first one compiles
        state, batch = timed("collect", lambda state=state: collect(state))
        learner: LearnerState = state.learner
        found = timed("advantages", lambda learner=learner, batch=batch: parts.advantages(learner, batch))
        timed("policy", lambda learner=learner, batch=batch, found=found: parts.policy(learner, batch, found))
        timed("critic", lambda learner=learner, found=found: parts.critic(learner, found))
        state, _ = timed("whole learner", lambda state=state, batch=batch: learn(state, batch))
    return {part: statistics.median(values[1:]) for part, values in seconds.items()}


def main() -> None:
    arguments = options(__doc__).parse_args()
    rounds = 3 if arguments.quick else 40
    folder = extent_of("bottleneck", (), quick=arguments.quick).folder
    found = {(name, size): seconds_of_parts(name, size, rounds) for name in TASKS for size in SIZES}
    rows = ((*case, *(f"{1e3 * parts[part]:.2f}" for part in PARTS)) for case, parts in found.items())
    names = ("env", "steps_per_update", *(f"{part.replace(' ', '_')}_ms" for part in PARTS))
    write_csv(folder / "parts.csv", names, rows)
    plot(found, folder / "parts.png")
    (folder / "README.md").write_text(summary(found, rounds))
    print(summary(found, rounds))


def plot(found: dict[tuple[str, int], dict[str, float]], path: Path) -> None:
    figure, axes = panels(1, len(SIZES), "Where the time of an update goes")
    for place, size in zip(axes[0], SIZES, strict=True):
        bottom = [0.0] * len(TASKS)
        for part in PARTS[:-1]:
            height = [1e3 * found[name, size][part] for name in TASKS]
            place.bar(TASKS, height, bottom=bottom, label=part)
            bottom = [a + b for a, b in zip(bottom, height, strict=True)]
        place.set(title=f"{size:,} steps an update", ylabel="milliseconds")
        place.legend(fontsize=7)
    save(figure, path)


def summary(found: dict[tuple[str, int], dict[str, float]], rounds: int) -> str:
    lines = [
        "# Where does the time of an update go?",
        "",
        f"`python experiments/bottleneck.py` on {machine()}: milliseconds, medians of up to {rounds} updates, default "
        f"settings and {ACTORS.count} actors. The parts of learning are compiled one by one here: all actors share the "
        "policy's step, and each fits the critic. The last column but one is the learner as it runs, in which one "
        "actor finds the step while another fits the critic.",
        "",
        "![Parts of an update](parts.png)",
        "",
        "| task | steps an update | collect | advantages | policy | critic | whole learner | collecting's share |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (name, size), parts in found.items():
        share = parts["collect"] / (parts["collect"] + parts["whole learner"])
        cells = " | ".join(f"{1e3 * parts[part]:.1f}" for part in PARTS)
        lines.append(f"| {name} | {size:,} | {cells} | {share:.0%} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
