"""What a simulator takes as one action, and how the numbers of compiled code become that."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:  # a process that steps simulators starts faster without
    from jaxtyping import Bool, Float, Num, Shaped

LARGEST, LEAST = np.finfo(np.float32).max, np.finfo(np.float32).tiny  # compiled code may flush what is smaller to zero


class ActionSpace(NamedTuple):
    """What a simulator takes as one action; flat, `shape` says how it wants it.

    Bounds are exact and have the simulator's own dtype. Compiled code computes in float32: `float32_bounds` are what it
    keeps to, and `make_converter` makes the simulator's actions of its numbers.
    """

    low: Num[np.ndarray, " action"]  # simulator's units; where a coordinate is a choice, the first one's number
    high: Num[np.ndarray, " action"]
    counts: tuple[int, ...] = ()  # choices of each coordinate; () where coordinates are real numbers
    shape: tuple[int, ...] | None = None  # flat if None; () for a single number

    @property
    def size(self) -> int:
        """Coordinates of an action."""
        return len(self.low)

    @property
    def kind(self) -> str:
        """What actions are, in words."""
        return f"choices among {self.counts}" if self.counts else f"{self.size} real number{'s' * (self.size > 1)}"

    @property
    def dtype(self) -> np.dtype:
        """Of the simulator's actions."""
        kinds, usual = ("iu", np.int64) if self.counts else ("f", np.float32)
        return self.low.dtype if self.low.dtype.kind in kinds else np.dtype(usual)

    @property
    def shape_of_one(self) -> tuple[int, ...]:
        """Of one action, as the simulator takes it."""
        return (self.size,) if self.shape is None else self.shape

    @property
    def largest(self) -> np.float32:
        """The largest number that compiled code may give the simulator; as a bound it is none, as infinity is."""
        return np.float32(min(float(np.finfo(self.dtype).max), float(LARGEST)))

    @property
    def bounded(self) -> Bool[np.ndarray, " action"]:
        """Which coordinates have two bounds."""
        low, high = self.float32_bounds()
        return np.isfinite(low) & np.isfinite(high)

    def float32_bounds(self) -> tuple[Float[np.ndarray, " action"], Float[np.ndarray, " action"]]:
        """The bounds of real numbers in float32, rounded inwards; infinite where there are none."""
        none, infinite = self.largest, np.float32(np.inf)
        with np.errstate(all="ignore"):  # a bound may be too large or too small for float32
            low, high = self.low.astype(np.float32), self.high.astype(np.float32)
            low = np.where(low < self.low, np.nextafter(low, infinite), low)
            high = np.where(high > self.high, np.nextafter(high, -infinite), high)
        return np.where(low > -none, low, -infinite), np.where(high < none, high, infinite)

    def policy_range(self) -> tuple[Float[np.ndarray, " action"], Float[np.ndarray, " action"]]:
        """The range of real numbers in policy units; what is beyond is clipped on the way to the simulator.

        It is [-1, 1] where a coordinate has two bounds. Where it lacks one, policy units are the simulator's, and so is
        the other bound.
        """
        bounded, (low, high) = self.bounded, self.float32_bounds()
        return np.where(bounded, np.float32(-1), low), np.where(bounded, np.float32(1), high)


def make_converter(space: ActionSpace) -> Callable[[Num[np.ndarray, "*batch action"]], Shaped[np.ndarray, "..."]]:
    """Builds what turns flat actions of compiled code into those that a simulator takes.

    Args:
      space: of the simulator.

    Returns:
      (flat actions [..., action]: float32 in the simulator's units, within `float32_bounds`, or int32 choices that
      count from 0) -> a fresh array [..., *shape] of the space's dtype, within its bounds. What is a bound in float32
      becomes the simulator's own.
    """
    shape, dtype = space.shape_of_one, space.dtype
    if space.counts:
        first = space.low.astype(dtype)
        if not first.any():
            return lambda flat: flat.astype(dtype).reshape((*flat.shape[:-1], *shape))
        return lambda flat: (flat.astype(dtype) + first).reshape((*flat.shape[:-1], *shape))
    low, high = space.float32_bounds()
    if _is_exact(space.low, low) and _is_exact(space.high, high):
        return lambda flat: flat.astype(dtype).reshape((*flat.shape[:-1], *shape))

    exact_low, exact_high = space.low.astype(dtype), space.high.astype(dtype)

    def convert(flat: Num[np.ndarray, "*batch action"]) -> Shaped[np.ndarray, "..."]:
        found = flat.astype(dtype)
        np.copyto(found, exact_high, where=flat >= high)
        np.copyto(found, exact_low, where=flat <= low)
        return found.reshape((*flat.shape[:-1], *shape))

    return convert


def _is_exact(bound: Num[np.ndarray, " action"], float32: Float[np.ndarray, " action"]) -> bool:
    """Whether float32 actions that keep to the float32 bound keep to the other, too, and reach it."""
    reached = (bound == float32) & ((bound == 0) | (np.abs(float32) >= LEAST))
    return bool(np.all(reached | np.isinf(float32)))
