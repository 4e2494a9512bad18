"""BASELINE, not part of jaxtrpo: Stable-Baselines3, sb3-contrib's TRPO, and SBX, which is its PPO and SAC in JAX.

    python experiments/baselines/sb3.py HalfCheetah-v5 --library sb3_contrib --algorithm trpo \
        --total-steps 1000000 --seed 0 --num-envs 16 --steps-per-update 1024 --vectorize subprocess

Observations and rewards are normalised as in its authors' collection of settings for MuJoCo (rl-zoo3). The settings of
PPO are written out, so that both libraries have the same. What is not given here is the library's default: for A2C
that of 2016 (RMSprop), and 64-64 tanh networks for policy and critic, each their own. SBX has no A2C. SAC has one
environment, no normalisation and 10,000 random steps first, as there.
"""

from __future__ import annotations

import importlib
from typing import Any

from after_update import AfterUpdate, Evaluation
from report import options
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

PPO = {
    "learning_rate": 3e-4,
    "batch_size": 64,
    "n_epochs": 10,
    "clip_range": 0.2,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "ent_coef": 0.0,
}
SAC = {"learning_starts": 10_000}
REPORT_SAC_EVERY = 1_000  # environment steps; it updates after each
# Module and settings by library and algorithm.
KNOWN: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("sb3_contrib", "trpo"): ("sb3_contrib", {}),
    ("sb3", "ppo"): ("stable_baselines3", PPO),
    ("sb3", "a2c"): ("stable_baselines3", {}),
    ("sb3", "sac"): ("stable_baselines3", SAC),
    ("sbx", "ppo"): ("sbx", PPO),
    ("sbx", "sac"): ("sbx", SAC),
}
VECTORIZE = {"in_process": DummyVecEnv, "subprocess": SubprocVecEnv}


def main() -> None:
    parser = options("num-envs", "steps-per-update")
    parser.add_argument("--library", default="sb3_contrib")
    parser.add_argument("--algorithm", default="trpo")
    parser.add_argument("--vectorize", choices=VECTORIZE, required=True)
    parser.add_argument("--eval-every", type=int, default=0, help="environment steps; 0 evaluates nothing")
    arguments = parser.parse_args()
    if (arguments.library, arguments.algorithm) not in KNOWN:
        parser.error(f"known are {', '.join(map(' '.join, KNOWN))}")
    if arguments.steps_per_update % arguments.num_envs:
        parser.error("--steps-per-update must be a multiple of --num-envs")
    module, settings = KNOWN[arguments.library, arguments.algorithm]
    algorithm = getattr(importlib.import_module(module), arguments.algorithm.upper())
    vectorize = VECTORIZE[arguments.vectorize]
    env = make_vec_env(arguments.env, n_envs=arguments.num_envs, seed=arguments.seed, vec_env_cls=vectorize)
    callbacks: list[BaseCallback]
    if arguments.algorithm == "sac":
        callbacks = [AfterUpdate(REPORT_SAC_EVERY)]
    else:
        callbacks = [AfterUpdate()]
        settings = {**settings, "n_steps": arguments.steps_per_update // arguments.num_envs}
        env = VecNormalize(env)
    model = algorithm("MlpPolicy", env, seed=arguments.seed, device="cpu", **settings)
    if arguments.eval_every:
        callbacks.append(Evaluation(make_vec_env(arguments.env, seed=arguments.seed + 1_000), arguments.eval_every))
    model.learn(arguments.total_steps, callback=callbacks)


if __name__ == "__main__":
    main()
