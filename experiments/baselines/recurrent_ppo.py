"""BASELINE, not part of jaxtrpo: sb3-contrib's RecurrentPPO on environments without their velocities.

    PYTHONPATH=experiments python experiments/baselines/recurrent_ppo.py --task Hopper-v5 --total-steps 100000 \\
        --seed 0 --episodes 20

Settings are the library's defaults, with eight environments. Prints one line of JSON: environment steps, seconds, and
the mean and standard deviation of the deterministic policy's return.
"""

from __future__ import annotations

import argparse
import json
import time

from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from common.positions import positions_of

ENVS = 8


class UntilSeconds(BaseCallback):
    """Ends a training after some seconds."""

    def __init__(self, seconds: float):
        """`seconds`: how long it takes."""
        super().__init__()
        self.end = time.perf_counter() + seconds

    def _on_step(self) -> bool:
        return time.perf_counter() < self.end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", required=True)
    parser.add_argument("--total-steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--episodes", type=int, required=True, help="of the evaluation")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    env = make_vec_env(lambda: positions_of(given.task), n_envs=ENVS, seed=given.seed)
    model = RecurrentPPO("MlpLstmPolicy", env, seed=given.seed, device="cpu")
    start = time.perf_counter()
    model.learn(given.total_steps, callback=UntilSeconds(given.seconds))
    seconds = time.perf_counter() - start
    mean, std = evaluate_policy(model, env, n_eval_episodes=given.episodes)
    figures = {"mean": mean, "std": std, "seconds": seconds}
    print(json.dumps({"steps": model.num_timesteps, **{name: round(float(v), 3) for name, v in figures.items()}}))


if __name__ == "__main__":
    main()
