"""Flat actions of a policy as actions of a Gymnasium space."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from jaxtrpo.config.messages import short
from jaxtrpo.envs.actions import ActionSpace, make_converter

SUPPORTED = "Box of real numbers, Discrete, MultiDiscrete and MultiBinary"


class Actions:
    """Makes a simulator's actions of those of compiled code.

    Args:
      space: of one action.

    Raises:
      ValueError: a space that is not supported.
    """

    def __init__(self, space: spaces.Space):
        self.space = described(space)
        if self.space.size == 0:
            raise ValueError(f"the action space {short(space)} has no coordinates")
        self.counts, self.size, self.shape = self.space.counts, self.space.size, self.space.shape_of_one
        self.flat_dtype = np.dtype(np.int32 if self.counts else np.float32)  # of what comes from a policy
        self._convert = make_converter(self.space)

    def batch(self, flat: np.ndarray) -> np.ndarray:
        """Flat actions [env, action] as a fresh array [env, *shape] of the space's dtype, within its bounds."""
        return self._convert(flat)

    def each(self, flat: np.ndarray) -> list[Any]:
        """The same as one action an environment, of the types that the space's own `sample` gives."""
        batch = self._convert(flat)
        # A number of a Box is an array without axes; a choice is a NumPy integer.
        return list(batch) if self.shape or self.counts else [batch[i, ...] for i in range(len(batch))]


def described(space: spaces.Space) -> ActionSpace:
    """What a simulator takes as one action.

    Raises:
      ValueError: a space that is not supported.
    """
    shape = tuple(space.shape or ())
    dtype = np.dtype(space.dtype) if space.dtype is not None else np.dtype(object)
    if isinstance(space, spaces.Box) and dtype.kind == "f":
        return ActionSpace(np.ravel(space.low), np.ravel(space.high), shape=shape)
    if isinstance(space, spaces.MultiBinary):
        first, counts = np.zeros(shape, dtype), np.full(shape, 2)
    elif isinstance(space, spaces.Discrete):
        first, counts = np.array(space.start, dtype), np.array(space.n)
    elif isinstance(space, spaces.MultiDiscrete):
        first, counts = np.array(space.start, dtype), np.array(space.nvec)
    else:
        raise ValueError(f"action space {short(space)} is not supported; supported are {SUPPORTED}")
    last = (first + (counts - 1)).astype(dtype)
    return ActionSpace(first.ravel(), last.ravel(), tuple(int(count) for count in counts.ravel()), shape)
