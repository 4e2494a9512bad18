"""Description of Gymnasium observation spaces, by which observations are converted."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from jaxtrpo.config.messages import short
from jaxtrpo.envs.observation_space import image_axes
from jaxtrpo.envs.observations import Observations, Part

MINIGRID = "minigrid.wrappers.ImgObsWrapper or FlatObsWrapper"
SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these"


def observations_of(space: spaces.Space) -> Observations:
    """Describes how observations of a Gymnasium space are converted.

    A Box of uint8 from 0 to 255, or of bool, is an image if `image_axes` finds height, width and channels.

    The parts of a Dict or Tuple are concatenated in Gymnasium's order (Dict keys are sorted, unless the space was
    created with an ordered mapping).

    Raises:
      ValueError: the space cannot be flattened, or its size is 0.
    """
    observations = Observations(_parts(space), short(space))
    if observations.space.size == 0:
        raise ValueError(f"the observation space {short(space)} is empty; it must hold at least one number")
    return observations


def _parts(space: spaces.Space, path: tuple[Any, ...] = ()) -> list[Part]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return [part for key, child in inner for part in _parts(child, (*path, key))]
    counts, first = (), ()
    if isinstance(space, spaces.Discrete):
        counts, first = (int(space.n),), (int(space.start),)
    elif isinstance(space, spaces.MultiDiscrete):
        counts, first = (tuple(int(number) for number in np.ravel(each)) for each in (space.nvec, space.start))
    elif not isinstance(space, spaces.Box | spaces.MultiBinary):
        raise ValueError(f"observation space {short(space, 80)} is not supported; {_what_helps(space, path)}")
    shape = tuple(space.shape or ())
    if isinstance(space, spaces.Box) and _is_of_pixels(space) and (axes := image_axes(shape)):
        return [Part(path, shape, short(space), axes=axes, dtype=str(space.dtype))]
    return [Part(path, shape, short(space), counts, first)]


def _is_of_pixels(space: spaces.Box) -> bool:
    return space.dtype == bool or (space.dtype == np.uint8 and bool(np.all(space.low == 0) & np.all(space.high == 255)))


def _what_helps(space: spaces.Space, path: tuple[Any, ...]) -> str:
    """Returns what to do about a space that is not supported."""
    if type(space).__module__.partition(".")[0] == "minigrid":
        return f"pass a function that wraps the environment with {MINIGRID}"
    if isinstance(space, spaces.Text) and path:
        return f"pass a function that leaves {path[0]!r} out with gymnasium.wrappers.FilterObservation"
    return f"supported: {SUPPORTED}"
