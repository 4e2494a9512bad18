"""The action space of a simulator, and the conversion of flat actions from compiled code into simulator actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:  # keeps worker processes fast to start
    from jaxtyping import Bool, Float, Num, Shaped

# Compiled code may flush subnormal numbers, those smaller than `SMALLEST_NORMAL`, to zero.
LARGEST, SMALLEST_NORMAL = np.finfo(np.float32).max, np.finfo(np.float32).tiny


class ActionSpace(NamedTuple):
    """The action space of a simulator, flattened; `shape` is the shape that the simulator expects.

    The bounds are exact and have the simulator's own dtype. Compiled code computes in float32 and stays within
    `float32_bounds`; `make_converter` converts its numbers into actions of the simulator.
    """

    low: Num[
        np.ndarray, " action"
    ]  # in the simulator's units; of a discrete coordinate, the number of the first choice
    high: Num[np.ndarray, " action"]
    counts: tuple[int, ...] = ()  # number of choices per coordinate; () if actions are continuous
    shape: tuple[int, ...] | None = None  # None: flat; (): a scalar

    @property
    def size(self) -> int:
        """Number of coordinates of an action."""
        return len(self.low)

    @property
    def kind(self) -> str:
        """Description for messages."""
        return f"discrete with {self.counts} choices" if self.counts else f"continuous of size {self.size}"

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the simulator's actions."""
        kinds, default = ("iu", np.int64) if self.counts else ("f", np.float32)
        return self.low.dtype if self.low.dtype.kind in kinds else np.dtype(default)

    @property
    def shape_of_one(self) -> tuple[int, ...]:
        """Shape of one action, as the simulator expects it."""
        return (self.size,) if self.shape is None else self.shape

    @property
    def largest(self) -> np.float32:
        """Largest number that compiled code may pass to the simulator; as a bound it means unbounded, like infinity."""
        return np.float32(min(float(np.finfo(self.dtype).max), float(LARGEST)))

    @property
    def bounded(self) -> Bool[np.ndarray, " action"]:
        """Mask of the coordinates that are bounded on both sides."""
        low, high = self.float32_bounds()
        return np.isfinite(low) & np.isfinite(high)

    def float32_bounds(self) -> tuple[Float[np.ndarray, " action"], Float[np.ndarray, " action"]]:
        """Returns the bounds of continuous actions in float32, rounded inwards; infinite where there is no bound."""
        unbounded, infinite = self.largest, np.float32(np.inf)
        with np.errstate(all="ignore"):  # a bound may overflow or underflow float32
            low, high = self.low.astype(np.float32), self.high.astype(np.float32)
            low = np.where(low < self.low, np.nextafter(low, infinite), low)
            high = np.where(high > self.high, np.nextafter(high, -infinite), high)
        return np.where(low > -unbounded, low, -infinite), np.where(high < unbounded, high, infinite)

    def policy_range(self) -> tuple[Float[np.ndarray, " action"], Float[np.ndarray, " action"]]:
        """Returns the range of continuous actions in policy units; actions beyond it are clipped.

        The range of a coordinate with two bounds is [-1, 1]. Without one of them, policy units are the simulator's
        units, and the range keeps the other bound, if any.
        """
        bounded, (low, high) = self.bounded, self.float32_bounds()
        return np.where(bounded, np.float32(-1), low), np.where(bounded, np.float32(1), high)


def make_converter(space: ActionSpace) -> Callable[[Num[np.ndarray, "*batch action"]], Shaped[np.ndarray, "..."]]:
    """Builds the function that converts flat actions from compiled code into actions of the simulator.

    Args:
      space: action space of the simulator.

    Returns:
      flat actions [..., action] -> a fresh array [..., *shape] of the space's dtype, within its bounds. The flat
      actions are float32 in the simulator's units, within `float32_bounds`, or int32 choices counted from 0. An action
      at a float32 bound becomes the simulator's exact bound.
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
        converted = flat.astype(dtype)
        np.copyto(converted, exact_high, where=flat >= high)
        np.copyto(converted, exact_low, where=flat <= low)
        return converted.reshape((*flat.shape[:-1], *shape))

    return convert


def _is_exact(bound: Num[np.ndarray, " action"], float32: Float[np.ndarray, " action"]) -> bool:
    """Returns whether float32 actions within the float32 bound respect the exact bound and can reach it."""
    reached = (bound == float32) & ((bound == 0) | (np.abs(float32) >= SMALLEST_NORMAL))
    return bool(np.all(reached | np.isinf(float32)))
