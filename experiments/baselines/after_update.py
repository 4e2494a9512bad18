"""How algorithms of Stable-Baselines3, and of the libraries that build on it, report their updates."""

from __future__ import annotations

import time

from report import Report
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, sync_envs_normalization


class AfterUpdate(BaseCallback):
    """Reports updates at least so many steps apart: where the next batch begins, or training ends."""

    def __init__(self, fewest_steps: int = 1) -> None:
        super().__init__()
        self._report, self._returns, self._reported, self._fewest_steps = Report(), [], 0, fewest_steps

    def _on_step(self) -> bool:
        self._returns += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= self._reported + self._fewest_steps:
            self._tell()

    def _tell(self) -> None:
        self._report(self.num_timesteps, self._returns)
        self._returns, self._reported = [], self.num_timesteps

    def _on_training_end(self) -> None:
        self._tell()


class Evaluation(BaseCallback):
    """Prints the mean return of ten deterministic episodes, and the seconds that all evaluations have taken."""

    def __init__(self, env: VecEnv, every: int) -> None:
        super().__init__()
        self._env, self._every, self._next, self._seconds = env, every, every, 0.0

    def _on_step(self) -> bool:
        if self.num_timesteps >= self._next:
            self._next += self._every
            begin = time.perf_counter()
            env = self._env
            if isinstance(self.training_env, VecNormalize):
                env = VecNormalize(env, training=False, norm_reward=False)
                sync_envs_normalization(self.training_env, env)
            found, _ = evaluate_policy(self.model, env, n_eval_episodes=10)
            self._seconds += time.perf_counter() - begin
            print(f"evaluation {self.num_timesteps} {found:.6g} {self._seconds:.2f}", flush=True)
        return True
