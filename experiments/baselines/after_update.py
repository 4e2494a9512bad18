"""How algorithms of Stable-Baselines3, and of the libraries that build on it, report their updates."""

from __future__ import annotations

from report import Report
from stable_baselines3.common.callbacks import BaseCallback


class AfterUpdate(BaseCallback):
    """Reports each update: where the next batch begins, or training ends."""

    def __init__(self) -> None:
        super().__init__()
        self._report, self._returns = Report(), []

    def _on_step(self) -> bool:
        self._returns += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self._report(self.num_timesteps, self._returns)
            self._returns = []

    def _on_training_end(self) -> None:
        self._on_rollout_start()
