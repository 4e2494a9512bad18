"""Observations of any plain Gymnasium space as flat float32 vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from jaxtrpo.envs.gymnasium.errors import short

SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these"


class Leaf(NamedTuple):
    """A space that holds one array, and where it goes in the flat vector."""

    path: tuple[Any, ...]  # keys that lead to it
    space: spaces.Space
    shape: tuple[int, ...]  # of one value
    part: slice  # of the flat vector
    first: np.ndarray | None  # numbers of the first choices, flat; None where values are numbers themselves
    offsets: np.ndarray  # of the choices: where in `part` the numbers of each begin; then the end


class Observations:
    """Turns a simulator's observations into rows of float32.

    Numbers stay what they are, in C order. A choice becomes one-hot. The parts of a Dict or Tuple follow each other in
    Gymnasium's order (the keys of a Dict sorted, unless the space was given them in an order of its own).

    Args:
      space: of one observation.

    Raises:
      ValueError: a space that cannot be flattened, or one without numbers.
    """

    def __init__(self, space: spaces.Space):
        self.space, self.leaves = space, _leaves(space)
        self.size = self.leaves[-1].part.stop if self.leaves else 0
        if self.size == 0:
            raise ValueError(f"the observation space {short(space)} holds no numbers")
        self.plain_shape = space.shape if isinstance(space, spaces.Box) else None

    def flatten(self, value: Any) -> np.ndarray:
        """One observation, or a batch of them with leading axes in every array, as float32 `[..., size]`.

        Raises:
          ValueError: the value does not fit the space.
        """
        first = np.shape(_find(value, self.leaves[0]))
        rows = np.empty((*first[: len(first) - len(self.leaves[0].shape)], self.size), np.float32)
        for leaf in self.leaves:
            _write(leaf, _find(value, leaf), rows)
        return rows

    def write(self, rows: np.ndarray, values: Sequence[Any]) -> None:
        """Writes one observation into each of `rows` [row, size].

        Raises:
          ValueError: a value does not fit the space.
        """
        if len(self.leaves) == 1 and not self.leaves[0].path:
            leaf = self.leaves[0]
            if self.plain_shape is not None and _same_shape(values, self.plain_shape):
                np.concatenate(values, axis=None, out=rows.reshape(-1), casting="unsafe")
            else:
                for row, value in zip(rows, values, strict=True):
                    _write(leaf, value, row)
            return
        for row, value in zip(rows, values, strict=True):
            for leaf in self.leaves:
                _write(leaf, _find(value, leaf), row)


def _same_shape(values: Sequence[Any], shape: tuple[int, ...]) -> bool:
    """Whether all are arrays of real numbers with this shape."""
    return all(type(value) is np.ndarray and value.shape == shape and value.dtype.kind in "fiub" for value in values)


def _leaves(space: spaces.Space, path: tuple[Any, ...] = (), start: int = 0) -> list[Leaf]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        found: list[Leaf] = []
        for key, part in inner:
            found += _leaves(part, (*path, key), found[-1].part.stop if found else start)
        return found
    first, offsets = None, np.zeros(1, np.int64)
    if isinstance(space, spaces.Discrete):
        shape, first, size = (), np.array([space.start]), int(space.n)
        offsets = np.array([0, size])
    elif isinstance(space, spaces.MultiDiscrete):
        shape, first = space.shape, np.ravel(space.start)
        offsets = np.concatenate([[0], np.cumsum(np.ravel(space.nvec))])
        size = int(offsets[-1])
    elif isinstance(space, spaces.Box | spaces.MultiBinary):
        shape = tuple(space.shape)
        size = int(np.prod(shape, dtype=np.int64))
    else:
        raise ValueError(f"observation space {short(space)} is not supported; supported are {SUPPORTED}")
    return [Leaf(path, space, tuple(shape), slice(start, start + size), first, offsets)]


def _find(value: Any, leaf: Leaf) -> Any:
    for key in leaf.path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"the observation {short(value)} has no entry {key!r}") from error
    return value


def _write(leaf: Leaf, value: Any, rows: np.ndarray) -> None:
    """Writes a leaf's value, with the leading axes of `rows`, into its part of `rows` [..., size]."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists of several lengths
        raise ValueError(f"the observation {short(value)} is no array, but its space is {short(leaf.space)}") from error
    lead, where = rows.shape[:-1], "".join(f"[{key!r}]" for key in leaf.path)
    if array.shape != (*lead, *leaf.shape):
        raise ValueError(
            f"observation{where} has shape {array.shape}, but its space {short(leaf.space)} has {leaf.shape}"
        )
    if array.dtype.kind not in ("fiub" if leaf.first is None else "iub"):
        raise ValueError(f"observation{where} has dtype {array.dtype}, which is not one of {short(leaf.space)}")
    part = rows[..., leaf.part]
    if leaf.first is None:
        part[...] = array.reshape(part.shape)
        return
    choice = array.reshape(*lead, -1).astype(np.int64) - leaf.first
    if ((choice < 0) | (choice >= np.diff(leaf.offsets))).any():
        raise ValueError(f"observation{where} is {short(value)}, which is not in {short(leaf.space)}")
    part[...] = 0
    np.put_along_axis(part, choice + leaf.offsets[:-1], 1, axis=-1)
