"""Conversion of flat actions into actions of a Gymnasium space."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from jaxtrpo.config.messages import short
from jaxtrpo.envs.actions import ActionSpace, make_converter

SUPPORTED = "Box of floats, Discrete, MultiDiscrete and MultiBinary"


class Actions:
    """Converts flat actions from compiled code into actions of a simulator.

    Args:
      space: description of the simulator's actions.
    """

    def __init__(self, space: ActionSpace):
        self.space = space
        self.counts, self.size, self.shape = space.counts, space.size, space.shape_of_one
        self.flat_dtype = np.dtype(np.int32 if self.counts else np.float32)  # dtype of the policy's actions
        self._convert = make_converter(space)

    def __reduce__(self) -> tuple[type[Actions], tuple[ActionSpace]]:
        """Lets the space be sent to another process instead of the conversion, which is a closure."""
        return Actions, (self.space,)

    def batch(self, flat: np.ndarray) -> np.ndarray:
        """Converts flat actions [env, action] to a new array [env, *shape] of the space's dtype, within its bounds."""
        return self._convert(flat)

    def each(self, flat: np.ndarray) -> list[Any]:
        """Converts flat actions to a list of one action per environment, of the types that `space.sample()` returns."""
        batch = self._convert(flat)
        # A scalar of a Box is a zero-dimensional array; a discrete one is a NumPy integer.
        return list(batch) if self.shape or self.counts else [batch[i, ...] for i in range(len(batch))]


def action_space_of(space: spaces.Space) -> ActionSpace:
    """Converts a Gymnasium space into an `ActionSpace`.

    Raises:
      ValueError: the space is not supported or has no coordinates.
    """
    shape = tuple(space.shape or ())
    dtype = np.dtype(space.dtype) if space.dtype is not None else np.dtype(object)
    if shape and not math.prod(shape):
        raise ValueError(f"the action space {short(space)} has no coordinates")
    if isinstance(space, spaces.Box) and dtype.kind == "f":
        return ActionSpace(np.ravel(space.low), np.ravel(space.high), shape=shape)
    if isinstance(space, spaces.MultiBinary):
        first, counts = np.zeros(shape, dtype), np.full(shape, 2)
    elif isinstance(space, spaces.Discrete):
        first, counts = np.array(space.start, dtype), np.array(space.n)
    elif isinstance(space, spaces.MultiDiscrete):
        first, counts = np.array(space.start, dtype), np.array(space.nvec)
    else:
        raise ValueError(f"action space {short(space)} is not supported; supported: {SUPPORTED}")
    last = (first + (counts - 1)).astype(dtype)
    return ActionSpace(first.ravel(), last.ravel(), tuple(int(count) for count in counts.ravel()), shape)
