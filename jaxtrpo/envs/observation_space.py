"""The observation space: which arrays an observation consists of."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from jaxtrpo.config.environment import VECTOR

IMAGE = "image"  # name of an image that is the whole observation
FLOAT = "float32"
SMALLEST_SIDE = 5  # of an image; smaller arrays are flattened


class Leaf(NamedTuple):
    """One array of an observation."""

    name: str  # `VECTOR`, or that of an image: its entry of the observation, `IMAGE` if it is the whole observation
    shape: tuple[int, ...]  # of an image: height, width, channels
    dtype: str = FLOAT  # of an image: uint8 from 0 to 255, bool, or float32 from 0 to 1

    @property
    def is_image(self) -> bool:
        """Whether it is an image."""
        return self.name != VECTOR

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest value."""
        if not self.is_image:
            return -math.inf, math.inf
        return 0.0, 255.0 if self.dtype == "uint8" else 1.0


class ObservationSpace(NamedTuple):
    """The arrays of an observation.

    Observations without images are flat: one array, float32 [..., size]. Others are a dictionary of arrays by name: the
    images [..., height, width, channels] in their own dtype and, if there are other numbers, `vector`, float32
    [..., size].
    """

    leaves: tuple[Leaf, ...]  # one, or the images and at most one vector
    frames: int = 1  # consecutive observations that a policy sees together

    @property
    def images(self) -> tuple[Leaf, ...]:
        """The images."""
        return tuple(leaf for leaf in self.leaves if leaf.is_image)

    @property
    def is_flat(self) -> bool:
        """Whether there are no images."""
        return not self.images

    @property
    def vector_size(self) -> int:
        """Numbers that are not of images."""
        return sum(leaf.shape[0] for leaf in self.leaves if not leaf.is_image)

    @property
    def size(self) -> int:
        """Numbers in an observation."""
        return sum(math.prod(leaf.shape) for leaf in self.leaves)

    @property
    def nbytes(self) -> int:
        """Bytes of an observation."""
        return sum(leaf.nbytes for leaf in self.leaves)

    @property
    def description(self) -> str:
        """Describes the arrays, for messages."""
        return ", ".join(f"{leaf.name} {leaf.dtype}{list(leaf.shape)}" for leaf in self.leaves)

    @property
    def stacked(self) -> ObservationSpace:
        """The space of all `frames` together, as a network sees them: along the last axis of each array."""
        leaves = [leaf._replace(shape=(*leaf.shape[:-1], leaf.shape[-1] * self.frames)) for leaf in self.leaves]
        return ObservationSpace(tuple(leaves))

    def lead_of(self, obs: Any) -> tuple[int, ...]:
        """Returns the leading axes of observations."""
        leaf = self.leaves[0]
        shape = np.shape(obs[leaf.name] if isinstance(obs, dict) else obs)
        return shape[: len(shape) - len(leaf.shape)]

    def fits(self, obs: dict[str, Any]) -> bool:
        """Whether a dictionary holds these arrays, all with the same leading axes."""
        if obs.keys() != {leaf.name for leaf in self.leaves}:
            return False
        lead = self.lead_of(obs)
        return all(np.shape(obs[leaf.name]) == (*lead, *leaf.shape) for leaf in self.leaves)

    def joined(self, arrays: dict[str, Any]) -> Any:
        """Returns an observation made of its arrays by name."""
        return arrays[VECTOR] if self.is_flat else {leaf.name: arrays[leaf.name] for leaf in self.leaves}

    def map(self, function: Any) -> Any:
        """Returns an observation whose arrays are made by `function` from leaves."""
        return self.joined({leaf.name: function(leaf) for leaf in self.leaves})

    def zeros(self, *lead: int) -> Any:
        """Returns observations of zeros with these leading axes."""
        return self.map(lambda leaf: np.zeros((*lead, *leaf.shape), leaf.dtype))


# What networks are made for: the size of flat observations, or the arrays of observations with images or frames.
Observed = int | ObservationSpace


def flat_space(size: int) -> ObservationSpace:
    """Returns the space of flat observations."""
    return ObservationSpace((Leaf(VECTOR, (size,)),))


def as_space(observed: Observed) -> ObservationSpace:
    """Returns the space of what a network is made for."""
    return flat_space(observed) if isinstance(observed, int) else observed


def as_observed(space: ObservationSpace) -> Observed:
    """Returns what a network is made for: only the size where observations are flat."""
    return space.size if space.is_flat and space.frames == 1 else space


def flat_size(observed: Observed, part: str) -> int:
    """Returns the size of flat observations, for a network that takes no others.

    Args:
      observed: what the network is made for.
      part: setting that chooses the network, for the message.

    Raises:
      ValueError: there are images; one sentence.
    """
    space = as_space(observed)
    if space.images:
        raise ValueError(
            f"{part} takes no images, but observations have {space.images[0].name} {list(space.images[0].shape)}; use "
            f"{part.partition('=')[0]}=cnn, or wrap the environment so that it returns vectors"
        )
    return space.stacked.size


def require_no_frames(observed: Observed, part: str) -> None:
    """Raises ValueError, with one sentence that names a part, if frames are stacked."""
    space = as_space(observed)
    if space.frames > 1:
        kind, _, name = part.partition("=")
        raise ValueError(f"frame_stack={space.frames}: {kind}={name} does not stack frames; use {kind}=mlp or cnn")


def single_size(observed: Observed, part: str) -> int:
    """As `flat_size`, for a part that takes no stacks of frames either."""
    require_no_frames(observed, part)
    return flat_size(observed, part)


def image_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns in which order the axes of an image are height, width and channels; () if it cannot be an image.

    Channels are the last of three axes unless the first is shorter than both others, and at most as many as the shorter
    side. Two axes are those of a grey image. The first of four axes counts frames, which become channels.
    """
    if len(shape) == 2:
        axes: tuple[int, ...] = (0, 1)
    elif len(shape) == 3:
        axes = (1, 2, 0) if shape[0] < shape[2] and shape[0] != shape[1] else (0, 1, 2)
    elif len(shape) == 4:
        height, width, channels = (axis + 1 for axis in image_axes(shape[1:]) or (0, 1, 2))
        axes = (height, width, 0, channels)
    else:
        return ()
    height, width = (shape[axis] for axis in axes[:2])
    channels = [shape[axis] for axis in axes[2:]]
    return axes if min(height, width) >= max([SMALLEST_SIDE, *channels]) else ()


def image_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, int, int]:
    """Returns height, width and channels of an image whose axes are in another order."""
    height, width, *channels = (shape[axis] for axis in axes)
    return height, width, math.prod(channels)


def channels_last(image: Any, axes: tuple[int, ...]) -> Any:
    """Rearranges images, whose last axes are ordered by `axes`, to [..., height, width, channels]; NumPy or JAX."""
    lead = image.ndim - len(axes)
    moved = image.transpose((*range(lead), *(lead + axis for axis in axes)))
    return moved.reshape(*image.shape[:lead], *image_shape(image.shape[lead:], axes))
