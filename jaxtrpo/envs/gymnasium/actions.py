"""Flat actions of a policy as actions of a Gymnasium space."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from jaxtrpo.envs.gymnasium.errors import short

SUPPORTED = "Box of real numbers, Discrete, MultiDiscrete and MultiBinary"


class Actions:
    """What a simulator takes as an action (see `jaxtrpo.envs.base.ActionSpace`).

    Args:
      space: of one action.

    Raises:
      ValueError: a space that is not supported.
    """

    counts: tuple[int, ...]  # choices of each coordinate; () where coordinates are real numbers
    low: np.ndarray  # float32, simulator's units
    high: np.ndarray

    def __init__(self, space: spaces.Space):
        self.shape: tuple[int, ...] = tuple(space.shape or ())
        self.dtype = np.dtype(space.dtype) if space.dtype is not None else np.dtype(object)
        if isinstance(space, spaces.Box) and self.dtype.kind == "f":
            self.counts, self._first = (), None
            with np.errstate(over="ignore"):
                self.low, self.high = (np.ravel(bound).astype(np.float32) for bound in (space.low, space.high))
        elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            if isinstance(space, spaces.MultiBinary):
                first, counts = np.zeros(self.shape, np.int64), np.full(self.shape, 2)
            elif isinstance(space, spaces.Discrete):
                first, counts = np.array(space.start), np.array(space.n)
            else:
                first, counts = np.array(space.start), np.array(space.nvec)
            self.counts = tuple(int(count) for count in counts.ravel())
            self.low = first.ravel().astype(np.float32)
            self.high = (first + counts - 1).ravel().astype(np.float32)
            self._first = first.astype(self.dtype) if first.any() else None
        else:
            raise ValueError(f"action space {short(space)} is not supported; supported are {SUPPORTED}")
        self.size = len(self.low)
        if self.size == 0:
            raise ValueError(f"the action space {short(space)} has no coordinates")
        self.flat_dtype = np.dtype(np.int32 if self.counts else np.float32)  # of what comes from a policy

    def batch(self, flat: np.ndarray) -> np.ndarray:
        """Flat actions [env, action] as a fresh array [env, *shape] of the space's dtype; choices count from 0."""
        array = flat.astype(self.dtype).reshape(len(flat), *self.shape)
        return array if self._first is None else array + self._first

    def each(self, flat: np.ndarray) -> list[Any]:
        """The same as one action an environment, of the types that the space's own `sample` gives."""
        batch = self.batch(flat)
        # A number of a Box is an array without axes; a choice is a NumPy integer.
        return list(batch) if self.shape or self.counts else [batch[i, ...] for i in range(len(batch))]
