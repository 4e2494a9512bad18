"""A walk in which nine of ten moves are illegal, for libraries that know action masks and for those that do not.

Needs only Gymnasium and NumPy, since it also runs in the environments of other libraries.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

CELLS, MOVES, LIMIT = 15, 20, 100
BEST = 1 - 0.9 * CELLS / LIMIT  # return of a walk without a wasted step


class Walk(gymnasium.Env):
    """Cells in a row, in each of which another two of `MOVES` moves are legal: one leads ahead, one back.

    An illegal move wastes the step. The reward is 1 - 0.9 steps / `LIMIT` behind the last cell, as in Minigrid, and 0
    elsewhere. The observation is one-hot for the cell, so the moves have to be found out in each of them.
    """

    def __init__(self) -> None:
        """Chooses the legal moves, the same in every walk."""
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (CELLS + 1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(MOVES)
        rng = np.random.default_rng(0)
        self._legal = np.stack([rng.permutation(MOVES)[:2] for _ in range(CELLS + 1)])  # ahead, back
        self._cell, self._steps = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Starts in the first cell."""
        super().reset(seed=seed)
        self._cell, self._steps = 0, 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Makes a move if it is legal."""
        ahead, back = self._legal[self._cell]
        self._cell = max(self._cell + int(action == ahead) - int(action == back), 0)
        self._steps += 1
        there = self._cell == CELLS
        reward = 1 - 0.9 * self._steps / LIMIT if there else 0.0
        return self._observation(), reward, there, self._steps == LIMIT and not there, {}

    def _observation(self) -> np.ndarray:
        return np.eye(CELLS + 1, dtype=np.float32)[self._cell]


class MaskedWalk(Walk):
    """The same, and says which moves are legal."""

    def action_masks(self) -> np.ndarray:
        """Returns whether each move is legal, as sb3-contrib and jaxtrpo ask for it."""
        return np.isin(np.arange(MOVES), self._legal[self._cell])
