"""What the observations of a plain Gymnasium space are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from jaxtrpo.config.messages import short
from jaxtrpo.envs.observations import Observations, Part

SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these"


def observations_of(space: spaces.Space) -> Observations:
    """Describes a space, and so how its values are flattened.

    The parts of a Dict or Tuple follow each other in Gymnasium's order (the keys of a Dict sorted, unless the space was
    given them in an order of its own).

    Raises:
      ValueError: a space that cannot be flattened, or one without numbers.
    """
    made = Observations(_parts(space), short(space))
    if made.size == 0:
        raise ValueError(f"the observation space {short(space)} holds no numbers")
    return made


def _parts(space: spaces.Space, path: tuple[Any, ...] = ()) -> list[Part]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return [found for key, part in inner for found in _parts(part, (*path, key))]
    counts, first = (), ()
    if isinstance(space, spaces.Discrete):
        counts, first = (int(space.n),), (int(space.start),)
    elif isinstance(space, spaces.MultiDiscrete):
        counts, first = (tuple(int(number) for number in np.ravel(each)) for each in (space.nvec, space.start))
    elif not isinstance(space, spaces.Box | spaces.MultiBinary):
        raise ValueError(f"observation space {short(space)} is not supported; supported are {SUPPORTED}")
    return [Part(path, tuple(space.shape or ()), short(space), counts, first)]
