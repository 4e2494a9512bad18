"""The arrays through which simulators take actions and give results, one row an environment."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np


class Rows(NamedTuple):
    """Of all environments; whoever steps environment i, in whatever process, uses row i."""

    seed: np.ndarray  # int64 [env]: of the first episode
    action: np.ndarray  # [env, action], int32 for choices, else float32
    end: np.ndarray  # bool [env]: truncate with this step
    obs: np.ndarray  # float32 [env, obs]; this and what follows as in `jaxtrpo.envs.base.EnvState`
    final_obs: np.ndarray  # float32 [env, obs]
    reward: np.ndarray  # float32 [env]
    terminated: np.ndarray  # bool [env]
    truncated: np.ndarray  # bool [env]
    invalid: np.ndarray  # bool [env]
    elapsed: np.ndarray  # int32 [env]


class RowSizes(NamedTuple):
    """What the rows of a set of environments have to hold."""

    num_envs: int
    observation_size: int
    action_size: int
    action_dtype: str

    def _fields_of_rows(self) -> list[tuple[tuple[int, ...], str]]:
        num, obs, flag = self.num_envs, ((self.num_envs, self.observation_size), "float32"), ((self.num_envs,), "bool")
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
        ]

    def nbytes(self) -> int:
        """Memory that the rows take."""
        return sum(_padded(math.prod(shape) * np.dtype(dtype).itemsize) for shape, dtype in self._fields_of_rows())

    def on(self, memory: Any) -> Rows:
        """The rows in a writable buffer of `nbytes`."""
        arrays, offset = [], 0
        for shape, dtype in self._fields_of_rows():
            count = math.prod(shape)
            arrays.append(np.frombuffer(memory, dtype, count, offset).reshape(shape))
            offset += _padded(count * np.dtype(dtype).itemsize)
        return Rows(*arrays)


def _padded(size: int) -> int:
    """Up to the next cache line, so that two processes do not write to one field's neighbour all the time."""
    return -(-size // 64) * 64
