"""BASELINE, not part of jaxtrpo: PPO and A2C of Stable-Baselines3, and PPO of SBX, which is its version in JAX.

    python experiments/baselines/sb3_onpolicy.py HalfCheetah-v5 --library sb3 --algorithm ppo \
        --total-steps 1000000 --seed 0 --num-envs 16 --steps-per-update 2048

Environments are stepped in the process of the learner. Observations and rewards are normalised as in its authors'
collection of settings for MuJoCo (rl-zoo3). The settings of PPO are written out, so that both libraries have the same;
A2C has its defaults, which are those of 2016 (RMSprop). Policy and critic are separate networks of 64-64 tanh, the
default of both libraries. SBX has no A2C.
"""

from __future__ import annotations

import importlib
from typing import Any

from after_update import AfterUpdate
from report import options
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

MODULES = {"sb3": "stable_baselines3", "sbx": "sbx"}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {
        "learning_rate": 3e-4,
        "batch_size": 64,
        "n_epochs": 10,
        "clip_range": 0.2,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "ent_coef": 0.0,
    },
    "a2c": {},
}


def main() -> None:
    parser = options("num-envs", "steps-per-update")
    parser.add_argument("--library", choices=MODULES, required=True)
    parser.add_argument("--algorithm", choices=SETTINGS, required=True)
    arguments = parser.parse_args()
    if (arguments.library, arguments.algorithm) == ("sbx", "a2c"):
        parser.error("SBX has no A2C")
    if arguments.steps_per_update % arguments.num_envs:
        parser.error("--steps-per-update must be a multiple of --num-envs")
    algorithm = getattr(importlib.import_module(MODULES[arguments.library]), arguments.algorithm.upper())
    env = make_vec_env(arguments.env, n_envs=arguments.num_envs, seed=arguments.seed, vec_env_cls=DummyVecEnv)
    model = algorithm(
        "MlpPolicy",
        VecNormalize(env),
        n_steps=arguments.steps_per_update // arguments.num_envs,
        seed=arguments.seed,
        device="cpu",
        **SETTINGS[arguments.algorithm],
    )
    model.learn(arguments.total_steps, callback=AfterUpdate())


if __name__ == "__main__":
    main()
