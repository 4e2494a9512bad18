"""Conversion of structured observations into float32 vectors and images, described without a simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxtrpo.config.messages import short
from jaxtrpo.envs.observation_space import FLOAT, IMAGE, VECTOR, Leaf, ObservationSpace, channels_last, image_shape

MASK = "action_mask"  # entry of an observation, or of `info`, that says which choices are legal


class Part(NamedTuple):
    """One array of an observation, described by plain values that can be saved to a file."""

    path: tuple[Any, ...]  # keys that lead to the array, outermost first; () if it is the whole observation
    shape: tuple[int, ...]
    description: str  # of its space, for messages
    counts: tuple[int, ...] = ()  # number of choices per coordinate, in C order; () if not discrete
    first: tuple[int, ...] = ()  # number of the first choice per coordinate
    axes: tuple[int, ...] = ()  # of an image: height, width, and those that become channels; () if it is flattened
    dtype: str = "uint8"  # of an image

    @property
    def name(self) -> str:
        """Name for messages."""
        return "observation" + "".join(f"[{key!r}]" for key in self.path)

    def find(self, value: Any) -> Any:
        """Returns the value of this part in an observation or a batch of observations.

        Raises:
          ValueError: the observation has no such entry.
        """
        for key in self.path:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError) as error:
                raise ValueError(f"the observation {short(value)} has no entry {key!r}") from error
        return value

    def require_shape(self, shape: tuple[int, ...], lead: tuple[int, ...]) -> None:
        """Raises ValueError if `shape` is not that of this part after the leading axes `lead`."""
        if shape != (*lead, *self.shape):
            raise ValueError(f"{self.name} has shape {shape}, but its space {self.description} has {self.shape}")


class _Placement(NamedTuple):
    """Position of a part in the flat vector."""

    part: Part
    columns: slice
    first: np.ndarray
    counts: np.ndarray
    offsets: np.ndarray  # first column, within `columns`, of the one-hot vector of each coordinate


class _Image(NamedTuple):
    """Position of an image among the bytes of all images."""

    part: Part
    leaf: Leaf
    columns: slice


class Observations:
    """Converts a simulator's observations into rows of float32, and images.

    Numeric parts are raveled in C order, discrete coordinates become one-hot vectors, and the parts are concatenated.
    Images keep their dtype and get their channels last; they are named after their entry of the observation.

    Args:
      parts: parts of an observation, with at least one number in all.
      description: description of the observation space, for messages.
    """

    def __init__(self, parts: Sequence[Part], description: str):
        self.parts, self.description = tuple(parts), description
        self._placements: list[_Placement] = []
        self._images: list[_Image] = []
        start, self.pixels = 0, 0  # numbers so far
        for part in self.parts:
            if part.axes:
                leaf = Leaf(_name_of_image(part), image_shape(part.shape, part.axes), part.dtype)
                size = math.prod(leaf.shape)
                self._images.append(_Image(part, leaf, slice(self.pixels, self.pixels + size)))
                self.pixels += size
                continue
            size = sum(part.counts) if part.counts else math.prod(part.shape)
            first, counts = np.array(part.first, np.int64), np.array(part.counts, np.int64)
            offsets = np.cumsum(counts) - counts
            self._placements.append(_Placement(part, slice(start, start + size), first, counts, offsets))
            start += size
        names = [image.leaf.name for image in self._images]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two images have the name {name!r}; rename an entry of the observation space")
        self.size = start  # without images
        self._pixel_dtype = FLOAT if any(image.leaf.dtype == FLOAT for image in self._images) else "uint8"
        leaves = [*(image.leaf for image in self._images), *([Leaf(VECTOR, (start,))] if start else [])]
        self.space = ObservationSpace(tuple(sorted(leaves)))
        single = self.parts[0] if len(self.parts) == 1 and not self.parts[0].path else None
        self.single = single  # the only part, if an observation is one array
        self.plain_shape = None if single is None or single.counts or single.axes else single.shape
        self.is_flat = self.plain_shape is not None and len(self.plain_shape) == 1  # already in the simulator

    def fits(self, value: Any) -> bool:
        """Returns whether `value` may be an observation in the simulator's form, or a batch, rather than flat rows.

        Structured observations are any value but an array. Observations that are one array must have its shape, and an
        integer dtype if they are discrete.
        """
        if self.single is None:
            return not hasattr(value, "dtype")
        array = value if hasattr(value, "dtype") else np.asarray(value)
        shape = self.single.shape
        if array.shape[max(array.ndim - len(shape), 0) :] != shape:
            return False
        return not self.single.counts or np.dtype(array.dtype).kind in "iu"

    def flatten(self, value: Any) -> Any:
        """Converts one observation, or a batch with the same leading axes in every array.

        Returns:
          Float32 [..., size] without images; otherwise a dictionary (see `ObservationSpace`).

        Raises:
          ValueError: the value does not fit the description.
        """
        first = np.shape(self.parts[0].find(value))
        lead = first[: len(first) - len(self.parts[0].shape)]
        rows, pixels = np.empty((*lead, self.size), np.float32), np.empty((*lead, self.pixels), self._pixel_dtype)
        self._write_one(value, rows, pixels)
        return self.joined(rows, pixels)

    def joined(self, rows: Any, pixels: Any) -> Any:
        """Returns observations in the form of `flatten`, from flat numbers and images [..., number]; NumPy or JAX."""
        arrays: dict[str, Any] = {VECTOR: rows}
        for image in self._images:
            flat = pixels[..., image.columns].reshape(*pixels.shape[:-1], *image.leaf.shape)
            arrays[image.leaf.name] = flat if flat.dtype == image.leaf.dtype else flat.astype(image.leaf.dtype)
        return self.space.joined(arrays)

    def write(self, rows: np.ndarray, pixels: np.ndarray, values: Sequence[Any]) -> None:
        """Flattens each observation of `values` into one of `rows` [row, size] and `pixels` uint8 [row, pixels].

        Raises:
          ValueError: a value does not fit the description.
        """
        if self.plain_shape is not None and _same_shape(values, self.plain_shape):
            np.concatenate(values, axis=None, out=rows.reshape(-1), casting="unsafe")
            return
        for row, of_images, value in zip(rows, pixels, values, strict=True):
            self._write_one(value, row, of_images)

    def write_batch(self, rows: np.ndarray, pixels: np.ndarray, value: Any) -> None:
        """Like `write`, of a batch of observations as vector environments return them."""
        for part in self.parts:
            given, wanted = np.shape(part.find(value)), len(rows)
            if given[:1] != (wanted,):
                raise ValueError(f"expected observations of {wanted} environments, not of shape {given}")
        self._write_one(value, rows, pixels)

    def _write_one(self, value: Any, rows: np.ndarray, pixels: np.ndarray) -> None:
        for placement in self._placements:
            _write(placement, placement.part.find(value), rows)
        for image in self._images:
            _write_image(image, image.part.find(value), pixels[..., image.columns])


def _name_of_image(part: Part) -> str:
    name = ".".join(map(str, part.path)) or IMAGE
    return f"{VECTOR}.{IMAGE}" if name == VECTOR else name


def _write_image(image: _Image, value: Any, pixels: np.ndarray) -> None:
    """Writes images, which have the leading axes of `pixels` [..., number], into them."""
    array = np.asarray(value)
    image.part.require_shape(array.shape, pixels.shape[:-1])
    of_bytes = image.leaf.dtype == "uint8"
    fits = array.dtype.kind in ("uib" if of_bytes else "ubf")
    if of_bytes and fits and array.dtype not in (np.uint8, np.bool_) and array.size:
        fits = bool(array.min() >= 0 and array.max() <= 255)
    if not fits:
        part = image.part
        raise ValueError(f"{part.name} has dtype {array.dtype}, which does not match its space {part.description}")
    pixels[...] = channels_last(array, image.part.axes).reshape(pixels.shape)


def _same_shape(values: Sequence[Any], shape: tuple[int, ...]) -> bool:
    """Returns whether all values are numeric arrays of this shape."""
    return all(type(value) is np.ndarray and value.shape == shape and value.dtype.kind in "fiub" for value in values)


def _write(placement: _Placement, value: Any, rows: np.ndarray) -> None:
    """Writes a part's value, which has the leading axes of `rows`, into its columns of `rows` [..., size]."""
    part = placement.part
    try:
        array = np.asarray(value)
    except ValueError as error:  # ragged lists
        raise ValueError(
            f"the observation {short(value)} is not an array, but its space is {part.description}"
        ) from error
    lead = rows.shape[:-1]
    part.require_shape(array.shape, lead)
    if array.dtype.kind not in ("iub" if part.counts else "fiub"):
        raise ValueError(f"{part.name} has dtype {array.dtype}, which does not match its space {part.description}")
    into = rows[..., placement.columns]
    if not part.counts:
        into[...] = array.reshape(into.shape)
        return
    choice = array.reshape(*lead, -1).astype(np.int64) - placement.first
    if ((choice < 0) | (choice >= placement.counts)).any():
        raise ValueError(f"{part.name} is {short(value)}, which is not in {part.description}")
    into[...] = 0
    np.put_along_axis(into, choice + placement.offsets, 1, axis=-1)
