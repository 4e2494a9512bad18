"""How fast is PPO on an Atari game, against Stable-Baselines3's?

    pip install '.[experiments]' ale-py opencv-python-headless
    python experiments/atari.py [--python /path/to/python] [--rounds 3] [--total-steps 20000] [--quick]

`--python` is an interpreter with stable-baselines3, ale-py and opencv (the present one, unless another is given). Both
learn from four grey frames of 84 x 84 pixels with the convolutions of Mnih et al. (2015), one network for policy and
values, and rl-zoo's settings for Atari without their schedules. Systems take turns. Written to
experiments/results/atari/.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import gymnasium
import numpy as np

import jaxtrpo
from common.machine import machine
from common.peer import answer_of, require_in
from common.store import RESULTS
from common.tables import write_csv

TASK, ROUNDS, TOTAL_STEPS = "BreakoutNoFrameskip-v4", 3, 20_000
SETTINGS = {
    "algorithm": "ppo(epochs=4, minibatch_size=256, learning_rate=2.5e-4, clip=0.1, entropy_bonus=0.01)",
    "policy": "cnn(kind='nature', shared=True)",
    "frame_stack": 4,
    "num_envs": 8,
    "steps_per_update": 1_024,
}
FRAMES = 4  # of the game in a step
OURS, SB3 = "jaxtrpo", "Stable-Baselines3"
ASKED = 2


class Clipped(gymnasium.RewardWrapper):
    """Rewards by their sign."""

    def reward(self, reward: Any) -> float:
        """Returns -1, 0 or 1."""
        return float(np.sign(reward))


def game() -> gymnasium.Env:
    """Makes the game with the usual preprocessing: one grey frame, four frames a step, clipped rewards.

    A lost life ends an episode, and up to 30 steps without an action begin one (Mnih et al. 2015).
    """
    import ale_py

    gymnasium.register_envs(ale_py)
    env = gymnasium.make(TASK, frameskip=1)
    return Clipped(gymnasium.wrappers.AtariPreprocessing(env, terminal_on_life_loss=True))


def ours(seed: int, total_steps: int) -> float:
    """Trains once; returns environment steps per second from the end of the second update to the end of the last."""
    metrics = jaxtrpo.train(game, seed=seed, total_steps=total_steps, progress=False, **SETTINGS).metrics
    steps, seconds = (np.asarray(metrics[name])[1:] for name in ("env_steps", "wall_seconds"))
    return float((steps[-1] - steps[0]) / (seconds[-1] - seconds[0]))


def theirs(python: str, seed: int, total_steps: int) -> float:
    """Trains once with Stable-Baselines3; returns the same."""
    found = answer_of("atari_ppo.py", {"task": TASK, "seed": seed, "total-steps": total_steps}, python=python)
    return found["steps"] / found["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with stable-baselines3")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--total-steps", type=int, default=TOTAL_STEPS, help="of each training")
    parser.add_argument("--quick", action="store_true", help="one short round, which is not kept")
    given = parser.parse_args()
    require_in(given.python, ("stable_baselines3", "ale_py"))
    rounds, total_steps = (1, 5_000) if given.quick else (given.rounds, given.total_steps)
    found: dict[str, list[float]] = {OURS: [], SB3: []}
    for number in range(rounds):
        found[OURS].append(ours(number, total_steps))
        found[SB3].append(theirs(given.python, number, total_steps))
        print(f"round {number}: {found[OURS][-1]:.0f} and {found[SB3][-1]:.0f} steps/s", flush=True)
    if given.quick:
        return
    folder = RESULTS / "atari"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [(name, number, f"{each:.1f}") for name, speeds in found.items() for number, each in enumerate(speeds)]
    write_csv(folder / "runs.csv", ("system", "round", "steps_per_second"), rows)
    (folder / "README.md").write_text(summary(found, total_steps))
    print(summary(found, total_steps))


def summary(found: dict[str, list[float]], total_steps: int) -> str:
    """Returns the text of README.md."""
    ratios = [a / b for a, b in zip(found[OURS], found[SB3], strict=True)]
    lines = [
        "# How fast is PPO on an Atari game?",
        "",
        f"`python experiments/atari.py` on {machine()}: {TASK}, {total_steps:,} steps a training, in turns; medians of "
        f"{len(ratios)} rounds, and their range. A step is {FRAMES} frames of the game. The first two updates (theirs: "
        "one), in which programs are compiled, are left out.",
        "",
        "Both have 8 environments, 1,024 steps an update, 4 passes in minibatches of 256, and one network of three "
        "convolutions and 512 units for policy and values. Theirs also presses the fire button at the beginning of an "
        "episode, and goes on with the same game after a lost life.",
        "",
        "| system | steps per second | frames per second |",
        "| --- | --- | --- |",
    ]
    for name, speeds in found.items():
        middle = statistics.median(speeds)
        lines.append(
            f"| {name} | {middle:.0f} ({min(speeds):.0f} to {max(speeds):.0f}) | {FRAMES * middle:,.0f} |",
        )
    lines += [
        "",
        f"Ours over theirs: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); asked: {ASKED}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
