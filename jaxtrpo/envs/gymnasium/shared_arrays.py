"""Arrays that pass actions to simulators and results back, with one row per environment."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np


class Rows(NamedTuple):
    """Arrays of all environments; the process or thread that steps environment i uses row i."""

    seed: np.ndarray  # int64 [env]: seed of the first episode
    action: np.ndarray  # [env, action]; int32 if discrete, else float32
    end: np.ndarray  # bool [env]: truncate the episode at this step
    obs: np.ndarray  # float32 [env, obs]; this and the following as in `jaxtrpo.envs.base.EnvState`
    final_obs: np.ndarray  # float32 [env, obs]
    reward: np.ndarray  # float32 [env]
    terminated: np.ndarray  # bool [env]
    truncated: np.ndarray  # bool [env]
    invalid: np.ndarray  # bool [env]
    elapsed: np.ndarray  # int32 [env]
    info: np.ndarray  # float32 [env, entry]: entries of the last info of the last episode that ended; NaN if missing
    pixels: np.ndarray  # uint8 [env, number]: images of `obs`, channels last, one after another
    final_pixels: np.ndarray  # uint8 [env, number]: images of `final_obs`


class RowSizes(NamedTuple):
    """Sizes that determine the arrays in `Rows`."""

    num_envs: int
    observation_size: int
    action_size: int
    action_dtype: str
    info_size: int = 0
    pixels: int = 0

    def _shapes_and_dtypes(self) -> list[tuple[tuple[int, ...], str]]:
        num, obs, flag = self.num_envs, ((self.num_envs, self.observation_size), "float32"), ((self.num_envs,), "bool")
        pixels = (num, self.pixels), "uint8"
        return [
            ((num,), "int64"),
            ((num, self.action_size), self.action_dtype),
            flag,
            obs,
            obs,
            ((num,), "float32"),
            flag,
            flag,
            flag,
            ((num,), "int32"),
            ((num, self.info_size), "float32"),
            pixels,
            pixels,
        ]

    def nbytes(self) -> int:
        """Size of the rows in bytes."""
        return sum(_padded(math.prod(shape) * np.dtype(dtype).itemsize) for shape, dtype in self._shapes_and_dtypes())

    def on(self, memory: Any) -> Rows:
        """Returns the rows as views of a writable buffer of `nbytes()` bytes."""
        arrays, offset = [], 0
        for shape, dtype in self._shapes_and_dtypes():
            count = math.prod(shape)
            arrays.append(np.frombuffer(memory, dtype, count, offset).reshape(shape))
            offset += _padded(count * np.dtype(dtype).itemsize)
        return Rows(*arrays)


def _padded(size: int) -> int:
    """Rounds up to whole cache lines, which avoids false sharing between arrays."""
    return -(-size // 64) * 64
