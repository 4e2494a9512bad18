"""Observations of any structure as flat float32 vectors, by a description that needs no simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxtrpo.config.messages import short

if TYPE_CHECKING:  # a process that steps simulators starts faster without
    from jaxtyping import Float


class Part(NamedTuple):
    """A part of an observation that is one array; plain values, which a file can hold."""

    path: tuple[Any, ...]  # keys that lead to it, from the outermost; () where it is the whole observation
    shape: tuple[int, ...]
    words: str  # its space, for messages
    counts: tuple[int, ...] = ()  # choices of each number in C order; () where numbers are what they seem
    first: tuple[int, ...] = ()  # the number of each first choice

    @property
    def name(self) -> str:
        """For messages."""
        return "observation" + "".join(f"[{key!r}]" for key in self.path)

    def find(self, value: Any) -> Any:
        """The value of this part in an observation, or a batch of them.

        Raises:
          ValueError: the observation has no such part.
        """
        for key in self.path:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError) as error:
                raise ValueError(f"the observation {short(value)} has no entry {key!r}") from error
        return value

    def require_shape(self, shape: tuple[int, ...], lead: tuple[int, ...]) -> None:
        """Raises ValueError if an array does not have this shape after the leading axes."""
        if shape != (*lead, *self.shape):
            raise ValueError(f"{self.name} has shape {shape}, but its space {self.words} has {self.shape}")


class _Place(NamedTuple):
    """Where a part goes in the flat vector."""

    part: Part
    where: slice
    first: np.ndarray
    counts: np.ndarray
    offsets: np.ndarray  # of the choices: where in `where` the numbers of each begin


class Observations:
    """Turns a simulator's observations into rows of float32.

    Numbers stay what they are, in C order. A choice becomes one-hot. Parts follow each other.

    Args:
      parts: at least one number in all.
      words: the space of an observation, for messages.
    """

    def __init__(self, parts: Sequence[Part], words: str):
        self.parts, self.words = tuple(parts), words
        self._places: list[_Place] = []
        start = 0
        for part in self.parts:
            size = sum(part.counts) if part.counts else math.prod(part.shape)
            first, counts = np.array(part.first, np.int64), np.array(part.counts, np.int64)
            self._places.append(_Place(part, slice(start, start + size), first, counts, np.cumsum(counts) - counts))
            start += size
        self.size = start
        alone = self.parts[0] if len(self.parts) == 1 and not self.parts[0].path else None
        self.alone = alone  # the part that is all, if an observation is one array
        self.plain_shape = None if alone is None or alone.counts else alone.shape
        self.is_flat = self.plain_shape is not None and len(self.plain_shape) == 1  # as the simulator gives it

    def fits(self, value: Any) -> bool:
        """Whether a value may be an observation as the simulator gives it, or a batch, rather than flat rows of them.

        Of parts, every value but an array may be one. Of choices, whole numbers of the right shape; of numbers, those
        of the right shape.
        """
        if self.alone is None:
            return not hasattr(value, "dtype")
        array = value if hasattr(value, "dtype") else np.asarray(value)
        shape = self.alone.shape
        if array.shape[max(array.ndim - len(shape), 0) :] != shape:
            return False
        return not self.alone.counts or np.dtype(array.dtype).kind in "iu"

    def flatten(self, value: Any) -> Float[np.ndarray, "*batch obs"]:
        """One observation, or a batch of them with leading axes in every array, as float32 `[..., size]`.

        Raises:
          ValueError: the value does not fit the description.
        """
        first = np.shape(self.parts[0].find(value))
        rows = np.empty((*first[: len(first) - len(self.parts[0].shape)], self.size), np.float32)
        for place in self._places:
            _write(place, place.part.find(value), rows)
        return rows

    def write(self, rows: np.ndarray, values: Sequence[Any]) -> None:
        """Writes one observation into each of `rows` [row, size].

        Raises:
          ValueError: a value does not fit the description.
        """
        if self.plain_shape is not None and _same_shape(values, self.plain_shape):
            np.concatenate(values, axis=None, out=rows.reshape(-1), casting="unsafe")
            return
        for row, value in zip(rows, values, strict=True):
            for place in self._places:
                _write(place, place.part.find(value), row)


def _same_shape(values: Sequence[Any], shape: tuple[int, ...]) -> bool:
    """Whether all are arrays of real numbers with this shape."""
    return all(type(value) is np.ndarray and value.shape == shape and value.dtype.kind in "fiub" for value in values)


def _write(place: _Place, value: Any, rows: np.ndarray) -> None:
    """Writes a part's value, with the leading axes of `rows`, into its place in `rows` [..., size]."""
    part = place.part
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists of several lengths
        raise ValueError(f"the observation {short(value)} is no array, but its space is {part.words}") from error
    lead = rows.shape[:-1]
    part.require_shape(array.shape, lead)
    if array.dtype.kind not in ("iub" if part.counts else "fiub"):
        raise ValueError(f"{part.name} has dtype {array.dtype}, which is not one of {part.words}")
    into = rows[..., place.where]
    if not part.counts:
        into[...] = array.reshape(into.shape)
        return
    choice = array.reshape(*lead, -1).astype(np.int64) - place.first
    if ((choice < 0) | (choice >= place.counts)).any():
        raise ValueError(f"{part.name} is {short(value)}, which is not in {part.words}")
    into[...] = 0
    np.put_along_axis(into, choice + place.offsets, 1, axis=-1)
