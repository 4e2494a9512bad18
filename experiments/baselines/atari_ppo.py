"""BASELINE, not part of jaxtrpo: Stable-Baselines3's PPO on an Atari game, with rl-zoo's settings.

    python experiments/baselines/atari_ppo.py --task BreakoutNoFrameskip-v4 --total-steps 20000 --seed 0

The learning rate and the clipping range stay as they are at first. Needs ale-py and opencv-python-headless. Prints one
line of JSON: environment steps, and seconds from the end of the first update to the end of the last.
"""

from __future__ import annotations

import argparse
import json
import time

import ale_py
import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

SETTINGS = {
    "n_steps": 128,
    "n_epochs": 4,
    "batch_size": 256,
    "learning_rate": 2.5e-4,
    "clip_range": 0.1,
    "vf_coef": 0.5,
    "ent_coef": 0.01,
}
ENVS = 8


class Updates(BaseCallback):
    """Notes when each batch begins, which is when the update before it has ended."""

    def __init__(self) -> None:
        """No batch has begun."""
        super().__init__()
        self.times: list[float] = []

    def _on_rollout_start(self) -> None:
        self.times.append(time.perf_counter())

    def _on_step(self) -> bool:
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", required=True)
    parser.add_argument("--total-steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    given = parser.parse_args()
    gymnasium.register_envs(ale_py)
    env = VecFrameStack(make_atari_env(given.task, n_envs=ENVS, seed=given.seed), n_stack=4)
    model = PPO("CnnPolicy", env, seed=given.seed, device="cpu", **SETTINGS)
    updates = Updates()
    model.learn(given.total_steps, callback=updates)
    begin, *rest = [*updates.times[1:], time.perf_counter()]
    print(json.dumps({"steps": len(rest) * ENVS * SETTINGS["n_steps"], "seconds": round(rest[-1] - begin, 3)}))


if __name__ == "__main__":
    main()
