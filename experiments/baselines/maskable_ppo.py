"""BASELINE, not part of jaxtrpo: sb3-contrib's MaskablePPO on the walk of `common/legal_moves.py`.

    PYTHONPATH=experiments python experiments/baselines/maskable_ppo.py --total-steps 100000 --seed 0 --masks 1 \\
        --target 0.822

Settings are the library's defaults, which are those of `ppo`, with the same 16 environments and 2,048 steps per update.
Prints one line of JSON: the environment steps until the last 100 episodes have the return that is asked for (null if
they never have), and the last mean return. Training stops there.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from common.legal_moves import MaskedWalk

ENVS, STEPS_PER_UPDATE, EPISODES = 16, 2_048, 100


class UntilReturn(BaseCallback):
    """Ends a training at the end of the first batch whose last 100 episodes have a mean return."""

    def __init__(self, target: float):
        """`target`: the mean return."""
        super().__init__()
        self.target, self.reached, self.mean = target, None, float("nan")
        self.going = True

    def _on_step(self) -> bool:
        return self.going

    def _on_rollout_end(self) -> None:
        last: Any = self.model.ep_info_buffer
        self.mean = float(np.mean([episode["r"] for episode in last])) if last else float("nan")
        if len(last) == EPISODES and self.mean >= self.target:
            self.reached, self.going = self.num_timesteps, False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--target", type=float, required=True)
    parser.add_argument("--masks", type=int, choices=(0, 1), required=True)
    given = parser.parse_args()
    env = make_vec_env(MaskedWalk, n_envs=ENVS, seed=given.seed)
    model = MaskablePPO("MlpPolicy", env, n_steps=STEPS_PER_UPDATE // ENVS, seed=given.seed, device="cpu")
    until = UntilReturn(given.target)
    model.learn(given.total_steps, callback=until, use_masking=bool(given.masks))
    print(json.dumps({"steps": until.reached, "last": round(until.mean, 3)}))


if __name__ == "__main__":
    main()
