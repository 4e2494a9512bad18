"""What action masks are worth where nine of ten moves are illegal: the same walk learned with a mask and without one.

    python experiments/masks.py [--python /path/to/python] [--quick]

Five seeds each of `trpo`, `ppo` and sb3-contrib's MaskablePPO, which `--python` can import (the present interpreter,
unless another is given). Measured are environment steps until the last 100 episodes have 95 % of the best mean return;
a training ends there, or after `STEPS`. Runs are made one at a time, and those in the table are not made again. Written
to experiments/results/masks/.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

import jaxtrpo
from common.legal_moves import BEST, CELLS, LIMIT, MOVES, MaskedWalk, Walk
from common.peer import answer_of, require_in
from common.tables import append_line, read_lines

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "masks"
SEEDS = (0, 1, 2, 3, 4)
STEPS = 120_000
TARGET = 0.95 * BEST
OURS = ("trpo", "ppo")
PEER = "MaskablePPO (sb3-contrib)"
ABOUT = f"""# Action masks where nine of ten moves are illegal

Made by `python experiments/masks.py`. Asked: with a mask, is an environment with nine of ten moves illegal learned in a
tenth of the steps?

The walk (`experiments/common/legal_moves.py`) has {CELLS} cells in a row. In each of them 2 of {MOVES} moves are legal,
one ahead and one back; an illegal move wastes the step. The only reward is 1 - 0.9 steps / {LIMIT}, behind the last
cell, within {LIMIT} steps; the best return is {BEST:g}.

Measured are environment steps until the last 100 training episodes have a mean return of {TARGET:.3f}, 95 % of the
best, in whole batches of 1,024 (`trpo`) or 2,048 steps: the median of five seeds, and the fewest and most. A training
ends after {STEPS:,} steps. All settings are defaults, except that MaskablePPO has the 16 environments and 2,048 steps
per update of `ppo` (sb3-contrib 2.9.2).

The length of the walk was chosen on seed 100, and decides the answer: on shorter walks, random moves reach the end now
and then without a mask, too. With 10 cells, `trpo` took 8,448 steps with masks and 124,160 without, `ppo` 10,496 and
41,216; with 12 cells, `trpo` took 9,472 and 38,144, `ppo` 12,544 and 41,216 (one run each).

Without masks, hardly any walk ends in 120,000 steps, so the last column is a lower bound.

| system | with masks | without | times as many steps without |
| --- | --- | --- | --- |
"""
FIELDS = ("system", "masks", "seed", "steps", "last")


def ours(algorithm: str, masks: bool, seed: int, total_steps: int) -> dict[str, Any]:
    """Trains with this library; returns the steps until the target, if any, and the last mean return."""
    result = jaxtrpo.train(
        MaskedWalk if masks else Walk,
        algorithm=algorithm,
        total_steps=total_steps,
        seed=seed,
        actors=2,
        stop_at_return=TARGET,
        progress=False,
    )
    assert result.policy.masked == masks
    returns, steps = result.metrics["return_100"], result.metrics["env_steps"]
    reached = returns[-1] >= TARGET
    return {"steps": int(steps[-1]) if reached else None, "last": round(float(returns[-1]), 3)}


def theirs(python: str, masks: bool, seed: int, total_steps: int) -> dict[str, Any]:
    """Trains with sb3-contrib in a process of its own; returns the same."""
    settings = {"total-steps": total_steps, "seed": seed, "target": TARGET, "masks": int(masks)}
    return answer_of("maskable_ppo.py", settings, python=python, threads=1)


def run(system: str, masks: bool, seed: int, python: str, total_steps: int = STEPS) -> dict[str, Any]:
    """Trains once; returns the line of the table."""
    if system == PEER:
        found = theirs(python, masks, seed, total_steps)
    else:
        found = ours(system, masks, seed, total_steps)
    return dict(zip(FIELDS, (system, masks, seed, found["steps"], found["last"]), strict=True))


def steps_of(lines: list[dict[str, Any]], system: str, masks: bool) -> list[int | None]:
    """Returns the steps of each seed; None for one that did not reach the target."""
    return [line["steps"] for line in lines if (line["system"], line["masks"]) == (system, masks)]


def median(steps: list[int | None]) -> float:
    """Returns the median; infinity if most seeds did not reach the target."""
    return float(np.median([np.inf if each is None else each for each in steps]))


def cell(steps: list[int | None]) -> str:
    """Returns the median, and the fewest and most steps, of those seeds that reached the target."""
    reached = [each for each in steps if each is not None]
    if not reached:
        return f"none of {len(steps)} seeds"
    middle = f"{median(steps):,.0f}" if np.isfinite(median(steps)) else f"> {STEPS:,}"
    missed = f"; {len(reached)} of {len(steps)} seeds" if len(reached) < len(steps) else ""
    return f"{middle} ({min(reached):,} to {max(reached):,}{missed})"


def ratio(with_masks: list[int | None], without: list[int | None]) -> str:
    """Returns how many times as many steps the median without masks is; a lower bound where it was not reached."""
    if np.isfinite(median(without)):
        return f"{median(without) / median(with_masks):.1f}"
    return f"> {STEPS / median(with_masks):.1f}"


def summary(lines: list[dict[str, Any]]) -> list[str]:
    """Returns the lines of README.md."""
    text = ABOUT.splitlines()
    for system in (*OURS, PEER):
        with_masks, without = (steps_of(lines, system, masks) for masks in (True, False))
        if with_masks and without:
            text.append(f"| {system} | {cell(with_masks)} | {cell(without)} | {ratio(with_masks, without)} |")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with sb3-contrib")
    parser.add_argument("--quick", action="store_true", help="one short run of each system, which is not kept")
    given = parser.parse_args()
    require_in(given.python, ("sb3_contrib",))
    systems = [(system, masks) for system in (*OURS, PEER) for masks in (True, False)]
    if given.quick:
        for system, masks in systems:
            print(run(system, masks, 100, given.python, total_steps=20_000), flush=True)
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    table = RESULTS / "runs.jsonl"
    lines = read_lines(table)
    done = {(line["system"], line["masks"], line["seed"]) for line in lines}
    for seed in SEEDS:
        for system, masks in systems:
            if (system, masks, seed) not in done:
                append_line(table, run(system, masks, seed, given.python))
                print(read_lines(table)[-1], flush=True)
    (RESULTS / "README.md").write_text("\n".join(summary(read_lines(table))) + "\n")


if __name__ == "__main__":
    main()
