"""BASELINE, not part of jaxtrpo: returns that Stable-Baselines3, sb3-contrib and SBX have reached after some seconds.

    PYTHONPATH=experiments python experiments/baselines/until_budgets.py --task HalfCheetah-v5 --library sb3 \\
        --algorithm sac --seed 0 --begin $(date +%s.%N) --budgets 10 30 100 --episodes 10

Settings are those of RL Baselines3 Zoo for the task, or for all MuJoCo tasks where it names none. Prints one line of
JSON: for each budget the seconds since `--begin`, the environment steps, and the mean return of the deterministic
policy at that moment. Policies are evaluated after training.
"""

from __future__ import annotations

import copy
import importlib
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from common.budgets import AtBudgets, options

MODULES = {"sb3": "stable_baselines3", "sb3_contrib": "sb3_contrib", "sbx": "sbx"}
NORMALIZED = ("ppo", "trpo")
_WIDE = {"net_arch": {"pi": [256, 256], "vf": [256, 256]}, "log_std_init": -2, "ortho_init": False}
PPO: dict[str, dict[str, Any]] = {
    "HalfCheetah-v5": {
        "batch_size": 64, "n_steps": 512, "gamma": 0.98, "learning_rate": 2.0633e-5, "ent_coef": 0.000401762,
        "clip_range": 0.1, "n_epochs": 20, "gae_lambda": 0.92, "max_grad_norm": 0.8, "vf_coef": 0.58096,
    },
    "Hopper-v5": {
        "batch_size": 32, "n_steps": 512, "gamma": 0.999, "learning_rate": 9.80828e-5, "ent_coef": 0.00229519,
        "clip_range": 0.2, "n_epochs": 5, "gae_lambda": 0.99, "max_grad_norm": 0.7, "vf_coef": 0.835671,
    },
    "Walker2d-v5": {
        "batch_size": 32, "n_steps": 512, "gamma": 0.99, "learning_rate": 5.05041e-5, "ent_coef": 0.000585045,
        "clip_range": 0.1, "n_epochs": 20, "gae_lambda": 0.95, "max_grad_norm": 1, "vf_coef": 0.871923,
    },
    "Humanoid-v5": {
        "batch_size": 256, "n_steps": 512, "gamma": 0.95, "learning_rate": 3.56987e-5, "ent_coef": 0.00238306,
        "clip_range": 0.3, "n_epochs": 5, "gae_lambda": 0.9, "max_grad_norm": 2, "vf_coef": 0.431892,
    },
    "Reacher-v5": {
        "batch_size": 32, "n_steps": 512, "gamma": 0.9, "learning_rate": 0.000104019, "ent_coef": 7.52585e-8,
        "clip_range": 0.3, "n_epochs": 5, "gae_lambda": 1.0, "max_grad_norm": 0.9, "vf_coef": 0.950368,
    },
    "Swimmer-v5": {
        "batch_size": 256, "n_steps": 1024, "gamma": 0.9999, "learning_rate": 6e-4, "gae_lambda": 0.98,
    },
}  # fmt: skip
ENVS = {("ppo", "Swimmer-v5"): 4}  # the others have two with TRPO, and one
WIDE_RELU = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Humanoid-v5")
TRPO = {
    "batch_size": 128, "n_steps": 1024, "gamma": 0.99, "gae_lambda": 0.95, "sub_sampling_factor": 1, "cg_max_steps": 25,
    "cg_damping": 0.1, "n_critic_updates": 20, "learning_rate": 1e-3,
}  # fmt: skip
OFF_POLICY = {"learning_starts": 10_000}
CROSSQ = {
    "buffer_size": 1_000_000, "learning_rate": 1e-3, "learning_starts": 5_000, "policy_delay": 3,
    "policy_kwargs": {"net_arch": {"pi": [256, 256], "qf": [2048, 2048]}},
}  # fmt: skip


class Watch(BaseCallback):
    """Keeps copies of the policy, with the moments of its observations, and ends training at the last budget."""

    def __init__(self, reached: AtBudgets) -> None:
        super().__init__()
        self.reached = reached

    def _on_step(self) -> bool:
        return self.reached.keep(self.num_timesteps, self._copied)

    def _copied(self) -> tuple[Any, Any]:
        env = self.model.get_env()
        moments = copy.deepcopy(env.obs_rms) if isinstance(env, VecNormalize) else None
        return _state_of(self.model.policy), moments


def _state_of(policy: Any) -> Any:
    if hasattr(policy, "actor_state"):  # of SBX, an immutable value of JAX
        return policy.actor_state
    return copy.deepcopy(policy.state_dict())


def _restore(policy: Any, state: Any) -> None:
    if hasattr(policy, "actor_state"):
        policy.actor_state = state
    else:
        policy.load_state_dict(state)


def settings_of(library: str, algorithm: str, task: str) -> dict[str, Any]:
    """Settings of RL Baselines3 Zoo."""
    if algorithm == "ppo":
        found = dict(PPO.get(task, {}))
        if task in WIDE_RELU:
            found["policy_kwargs"] = {**_WIDE, "activation_fn": _relu(library)}
        return found
    if algorithm == "trpo":
        return {**TRPO, **({"target_kl": 0.04} if task == "HalfCheetah-v5" else {}), **_far_sighted(task, 0.9999)}
    if algorithm == "crossq":
        return {**CROSSQ, **_far_sighted(task, 0.999)}
    dropped = {"top_quantiles_to_drop_per_net": 5} if (algorithm, task) == ("tqc", "Hopper-v5") else {}
    return {**OFF_POLICY, **dropped, **_far_sighted(task, 0.999)}


def _far_sighted(task: str, discount: float) -> dict[str, float]:
    return {"gamma": discount} if task == "Swimmer-v5" else {}


def _relu(library: str) -> Any:
    if library == "sbx":
        return importlib.import_module("flax.linen").relu
    return importlib.import_module("torch").nn.ReLU


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--library", choices=MODULES, required=True)
    given = parser.parse_args()
    settings = settings_of(given.library, given.algorithm, given.task)
    number = ENVS.get((given.algorithm, given.task), 2 if given.algorithm == "trpo" else 1)
    env = make_vec_env(given.task, n_envs=number, seed=given.seed)
    if given.algorithm in NORMALIZED:
        env = VecNormalize(env, gamma=settings.get("gamma", 0.99))
    name = {"ppo": "PPO", "trpo": "TRPO", "sac": "SAC", "tqc": "TQC", "crossq": "CrossQ"}[given.algorithm]
    make = getattr(importlib.import_module(MODULES[given.library]), name)
    model = make("MlpPolicy", env, seed=given.seed, device="cpu", **settings)
    reached = AtBudgets(given.begin, given.budgets)
    model.learn(10**9, callback=Watch(reached))

    def worth(policy_and_moments: tuple[Any, Any]) -> float:
        state, moments = policy_and_moments
        _restore(model.policy, state)
        judge = make_vec_env(given.task, seed=given.seed + 1_000)
        if moments is not None:
            judge = VecNormalize(judge, training=False, norm_reward=False)
            judge.obs_rms = moments
        return evaluate_policy(model, judge, n_eval_episodes=given.episodes)[0]

    print(reached.answer(worth))


if __name__ == "__main__":
    main()
