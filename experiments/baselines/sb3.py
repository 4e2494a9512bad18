"""BASELINE, not part of jaxtrpo: TRPO of sb3-contrib.

    python experiments/baselines/sb3.py HalfCheetah-v5 --total-steps 1000000 --seed 0 --num-envs 16 \
        --steps-per-update 1024 --vectorize subprocess

Observations and rewards are normalised as in its authors' collection of settings for MuJoCo (rl-zoo3). Everything that
is not given here is sb3-contrib's default, which is 64-64 tanh networks for both policy and critic.
"""

from __future__ import annotations

from after_update import AfterUpdate
from report import options
from sb3_contrib import TRPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize


def main() -> None:
    parser = options("num-envs", "steps-per-update")
    parser.add_argument("--vectorize", choices=("in_process", "subprocess"), required=True)
    arguments = parser.parse_args()
    vectorize = {"in_process": DummyVecEnv, "subprocess": SubprocVecEnv}[arguments.vectorize]
    env = make_vec_env(arguments.env, n_envs=arguments.num_envs, seed=arguments.seed, vec_env_cls=vectorize)
    model = TRPO(
        "MlpPolicy",
        VecNormalize(env),
        n_steps=arguments.steps_per_update // arguments.num_envs,
        seed=arguments.seed,
        device="cpu",
    )
    model.learn(arguments.total_steps, callback=AfterUpdate())


if __name__ == "__main__":
    main()
