"""How fast is PPO on an Atari game, against Stable-Baselines3's and CleanRL's?

    pip install '.[experiments]' ale-py opencv-python-headless
    python experiments/atari.py [--python /path/to/python] [--cleanrl /path/to/cleanrl]
        [--cleanrl-python /path/to/python] [--rounds 3] [--total-steps 20000] [--quick]
    python experiments/atari.py --learn 2000000

`--python` is an interpreter with stable-baselines3, ale-py and opencv (the present one, unless another is given);
`--cleanrl` a checkout of CleanRL, which is left out without it, and `--cleanrl-python` an interpreter with what it
needs. All learn from four grey frames of 84 x 84 pixels with the convolutions of Mnih et al. (2015), one network for
policy and values, and rl-zoo's settings for Atari without their schedules. Systems take turns. `--learn` trains ours
once for as many steps, and measures nothing else. Written to experiments/results/atari/.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import jaxtrpo
from common.machine import machine
from common.peer import answer_of, require_in
from common.store import RESULTS

TASK, ROUNDS, TOTAL_STEPS = "BreakoutNoFrameskip-v4", 3, 20_000
SETTINGS = {
    "algorithm": "ppo(epochs=4, minibatch_size=256, learning_rate=2.5e-4, clip=0.1, entropy_bonus=0.01)",
    "policy": "cnn(kind='nature', shared=True)",
    "frame_stack": 4,
    "num_envs": 8,
    "steps_per_update": 1_024,
}
FRAMES = 4  # of the game in a step
GAMES = 30  # of the evaluation after training
OURS, SB3, CLEANRL = "jaxtrpo", "Stable-Baselines3", "CleanRL"
NOTHING, FIRE, RIGHT = 0, 1, 2  # actions
ASKED = 2


class Clipped(gymnasium.RewardWrapper):
    """Rewards by their sign."""

    def reward(self, reward: Any) -> float:
        """Returns -1, 0 or 1."""
        return float(np.sign(reward))


class OneLife(gymnasium.Wrapper):
    """Ends an episode with each life; the game goes on in the next one, until it is over.

    An episode begins by pressing the fire button, as in Stable-Baselines3 and CleanRL.
    """

    def __init__(self, env: gymnasium.Env):
        """`env`: a game with lives."""
        super().__init__(env)
        self.over, self.lives = True, 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Steps the game."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.over = terminated or truncated
        before, self.lives = self.lives, info["lives"]
        return obs, float(reward), terminated or self.lives < before, truncated, info

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Goes on, or begins a new game if the last one is over or a seed is given."""
        begins = self.over or options.get("seed") is not None
        if begins:
            obs, info = self.env.reset(**options)
        for action in (FIRE, RIGHT) if begins else (NOTHING, FIRE, RIGHT):
            obs, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                obs, info = self.env.reset()
        self.over, self.lives = False, info["lives"]
        return obs, info


class WholeGame(gymnasium.Wrapper):
    """Makes the lives of a game one episode again."""

    env: OneLife

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Steps the game, and begins the next life."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        if terminated and not self.env.over:
            obs, info = self.env.reset()
        return obs, reward, terminated and self.env.over, truncated, info


def one_life() -> OneLife:
    """Makes the game with the usual preprocessing: one grey frame, four frames a step.

    A life is an episode, and up to 30 steps without an action begin a game (Mnih et al. 2015).
    """
    import ale_py

    gymnasium.register_envs(ale_py)
    env = gymnasium.make(TASK, frameskip=1, obs_type="grayscale")  # colours would be made, and not looked at
    return OneLife(gymnasium.wrappers.AtariPreprocessing(env))


def game() -> gymnasium.Env:
    """Makes what is learned: lives, with clipped rewards."""
    return Clipped(one_life())


def whole_game() -> gymnasium.Env:
    """Makes what is evaluated: whole games, with their points."""
    return WholeGame(one_life())


def ours(seed: int, total_steps: int) -> float:
    """Trains once; returns environment steps per second from the end of the second update to the end of the last."""
    metrics = jaxtrpo.train(game, seed=seed, total_steps=total_steps, progress=False, **SETTINGS).metrics
    steps, seconds = (np.asarray(metrics[name])[1:] for name in ("env_steps", "wall_seconds"))
    return float((steps[-1] - steps[0]) / (seconds[-1] - seconds[0]))


def learned(total_steps: int, actors: int | None) -> dict[str, Any]:
    """Trains once; returns rewards of a life while exploring at ten times, and scores of whole games after training."""
    result = jaxtrpo.train(game, seed=0, total_steps=total_steps, actors=actors, progress=False, **SETTINGS)
    metrics = {name: np.asarray(values) for name, values in result.metrics.items()}
    rows = np.searchsorted(metrics["env_steps"], np.linspace(0.1, 1.0, 10) * metrics["env_steps"][-1])
    found = jaxtrpo.evaluate(result.policy, whole_game, episodes=GAMES, seed=1, stochastic=True)
    return {
        "steps": int(metrics["env_steps"][-1]),
        "actors": result.config.actors,
        "minutes": round(float(metrics["wall_seconds"][-1]) / 60, 1),
        "lives": [(int(metrics["env_steps"][row]), round(float(metrics["return_100"][row]), 2)) for row in rows],
        "score": round(found.mean, 1),
        "standard_deviation": round(found.std, 1),
    }


def theirs(python: str, script: str, flags: dict[str, Any], seed: int, total_steps: int) -> float:
    """Trains once with another library; returns the same."""
    flags = {**flags, "task": TASK, "seed": seed, "total-steps": total_steps}
    found = answer_of(script, flags, python=python)
    return found["steps"] / found["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with stable-baselines3")
    parser.add_argument("--cleanrl", help="a checkout of CleanRL")
    parser.add_argument("--cleanrl-python", default=sys.executable, help="an interpreter with what CleanRL needs")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--total-steps", type=int, default=TOTAL_STEPS, help="of each training")
    parser.add_argument("--quick", action="store_true", help="one short round, which is not kept")
    parser.add_argument("--learn", type=int, metavar="STEPS", help="only train ours, once")
    parser.add_argument("--actors", type=int, help="of that training; by default, as many as there are cores")
    given = parser.parse_args()
    folder = RESULTS / "atari"
    folder.mkdir(parents=True, exist_ok=True)
    if given.learn:
        (folder / "learned.json").write_text(json.dumps(learned(given.learn, given.actors)) + "\n")
        write_readme(folder)
        return
    require_in(given.python, ("stable_baselines3", "ale_py"))
    systems: dict[str, Callable[[int, int], float]] = {
        OURS: ours,
        SB3: functools.partial(theirs, given.python, "atari_ppo.py", {}),
    }
    if given.cleanrl:
        require_in(given.cleanrl_python, ("torch", "tyro", "ale_py"))
        systems[CLEANRL] = functools.partial(
            theirs, given.cleanrl_python, "cleanrl_atari.py", {"source": given.cleanrl}
        )
    rounds, total_steps = (1, 5_000) if given.quick else (given.rounds, given.total_steps)
    found: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(rounds):
        for name, measure in systems.items():
            found[name].append(measure(number, total_steps))
            print(f"round {number}: {name} {found[name][-1]:.0f} steps/s", flush=True)
    if given.quick:
        return
    (folder / "speed.json").write_text(json.dumps({"machine": machine(), "steps": total_steps, "speeds": found}) + "\n")
    write_readme(folder)


def write_readme(folder: Path) -> None:
    """Writes README.md from what has been measured so far."""
    texts = {"speed.json": of_speed, "learned.json": of_learning}
    made = [text(json.loads((folder / name).read_text())) for name, text in texts.items() if (folder / name).exists()]
    (folder / "README.md").write_text("\n".join(["# PPO on an Atari game", *made]))
    print((folder / "README.md").read_text())


def of_learning(found: dict[str, Any]) -> str:
    """Returns what README.md says of a long training."""
    lives = "\n".join(f"| {steps:,} | {reward:g} |" for steps, reward in found["lives"])
    return f"""
## A long training

`python experiments/atari.py --learn {found["steps"]} --actors {found["actors"]}`, seed 0: {found["steps"]:,} steps,
which are {FRAMES * found["steps"]:,} frames, in {found["minutes"]:g} minutes; other work may have run beside it.
Afterwards, {GAMES} whole games have a mean score of {found["score"]:g}, with actions drawn as in training (standard
deviation {found["standard_deviation"]:g}). While exploring, the mean reward of the last 100 lives was:

| steps | reward of a life |
| --- | --- |
{lives}
"""


def of_speed(found: dict[str, Any]) -> str:
    """Returns what README.md says of speed."""
    speeds: dict[str, list[float]] = found["speeds"]
    rows = []
    for name, each in speeds.items():
        middle, compared = statistics.median(each), ""
        if name != OURS:
            ratios = [a / b for a, b in zip(speeds[OURS], each, strict=True)]
            compared = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        whole = f"{middle:.0f} ({min(each):.0f} to {max(each):.0f})"
        rows.append(f"| {name} | {whole} | {FRAMES * middle:,.0f} | {compared} |")
    table = "\n".join(rows)
    return f"""
## Speed

`python experiments/atari.py --cleanrl ... --rounds {len(speeds[OURS])}` on {found["machine"]}:
{TASK}, {found["steps"]:,} steps a training, in turns; medians of {len(speeds[OURS])} rounds, and their range. A step is
{FRAMES} frames of the game. The first two updates (theirs: one), in which programs are compiled, are left out.

All have 8 environments, 1,024 steps an update, 4 passes in minibatches of 256, and one network of three convolutions
and 512 units for policy and values; a life is an episode, and rewards are clipped. Asked: {ASKED} times as fast as the
others.

| system | steps per second | frames per second | ours over it |
| --- | --- | --- | --- |
{table}
"""


if __name__ == "__main__":
    main()
