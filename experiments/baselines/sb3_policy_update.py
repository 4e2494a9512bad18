"""BASELINE, not part of jaxtrpo: the policy update of sb3-contrib's TRPO by itself, on a batch that stays the same.

    python experiments/baselines/sb3_policy_update.py HalfCheetah-v5 --steps 20480 --cg-iterations 10

Its own `train` with no gradient step of the critic: gradient, conjugate gradient on all states, line search. Each line
on standard input asks for one; the answer is its seconds. Each starts from the same policy.
"""

from __future__ import annotations

import argparse
import copy
import warnings

from rounds import answer_rounds
from sb3_contrib import TRPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger

NUM_ENVS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--cg-iterations", type=int, required=True)
    arguments = parser.parse_args()
    model = TRPO(
        "MlpPolicy",
        make_vec_env(arguments.env, n_envs=NUM_ENVS, seed=0),
        n_steps=arguments.steps // NUM_ENVS,
        cg_max_steps=arguments.cg_iterations,
        seed=0,
        device="cpu",
    )
    start = copy.deepcopy(model.policy.state_dict())
    model.learn(arguments.steps)  # fills the buffer
    model.n_critic_updates = 0
    model.set_logger(Logger(None, []))
    warnings.simplefilter("ignore", RuntimeWarning)  # the mean of no losses of the critic

    def work() -> None:
        model.policy.load_state_dict(start)  # that of the batch
        model.train()

    answer_rounds(work)


if __name__ == "__main__":
    main()
