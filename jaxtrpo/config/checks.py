"""Checks of settings; the errors name the setting, its value and what is accepted."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxtrpo.config.messages import short

INT32 = 2**31 - 1  # compiled programs count in these
MOST_REPLAY_RATIO = 1_000  # gradient steps per environment step
MOST_UNITS = 2**20  # of a layer
MOST_BPTT_STEPS = 10_000  # of back-propagation through time; each is computed after the one before
MOST_FRAMES = 256  # that are stacked
MOST_EPISODES = 1_000_000  # of one evaluation, all of which run at the same time
MOST_ENVS = 2**20  # of all actors; each of Gymnasium's is an object of Python
MOST_SEEDS = 10_000  # of one command
SMALLEST, LARGEST = 2.0**-126, 2.0**127  # magnitudes of normal float32 numbers, which compiled programs compute with


def require_whole(least: int, most: int | None = INT32, **values: object) -> None:
    """Raises ValueError for a value that is not an integer between `least` and `most`; None means no upper bound."""
    for name, value in values.items():
        number = plain(value)
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ValueError(f"{name}={short(value)} must be a whole number of at least {least}")
        if most is not None and number > most:
            raise ValueError(f"{name}={short(value)} must be at most {most}")


def whole(value: Any) -> Any:
    """Returns a float that is a whole number, such as 1e6, as an integer, and anything else unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def plain(value: Any) -> Any:
    """Returns a scalar of NumPy or JAX, also in a tuple or list, as Python's, and anything else unchanged.

    Text such as `np.float64(0.1)` could not be read again.
    """
    if type(value) in (tuple, list):
        return type(value)(map(plain, value))
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def require_path(**values: object) -> None:
    """Raises ValueError for a value that is not the path of a directory."""
    for name, value in values.items():
        if not isinstance(value, str | Path):
            raise ValueError(f"{name}={short(value)} must be the path of a directory")
        if not str(value):
            raise ValueError(f"{name}='' must name a directory")


def require_seed(**values: object) -> None:
    """Raises ValueError for a value that is not a random seed: JAX would ignore bits beyond the 32nd."""
    require_whole(0, 2**32 - 1, **values)


def require_number(what: str, test: Callable[[float], bool], **values: Any) -> None:
    """Raises ValueError for a value that is not a finite number or fails `test`; `what` says what is accepted."""
    for name, value in values.items():
        if not is_number(value) or not _is_finite(value) or not test(value):
            raise ValueError(f"{name}={short(value)} must be {what}")
        if value and not SMALLEST <= abs(value) <= LARGEST:
            raise ValueError(f"{name}={short(value)} must be between {SMALLEST:.1e} and {LARGEST:.1e} in magnitude")


def require_positive(**values: Any) -> None:
    """Raises ValueError for a value that is not a positive number."""
    require_number("positive", lambda value: value > 0, **values)


def require_not_negative(**values: Any) -> None:
    """Raises ValueError for a value that is not a number of at least 0."""
    require_number("at least 0", lambda value: value >= 0, **values)


def require_replay_ratio(**values: Any) -> None:
    """Raises ValueError for a value that is not a number of gradient steps per environment step."""
    require_number(f"positive and at most {MOST_REPLAY_RATIO}", lambda value: 0 < value <= MOST_REPLAY_RATIO, **values)


def require_share(**values: Any) -> None:
    """Raises ValueError for a value that is not between 0 and 1, inclusive."""
    require_number("between 0 and 1", lambda value: 0 <= value <= 1, **values)


def require_bool(**values: object) -> None:
    """Raises ValueError for a value that is neither True nor False."""
    for name, value in values.items():
        if not isinstance(plain(value), bool):
            raise ValueError(f"{name}={short(value)} must be True or False")


def require_sizes(**values: object) -> None:
    """Raises ValueError for a value that is not a sequence of layer sizes."""
    for name, value in values.items():
        if not isinstance(value, (tuple, list)):
            raise ValueError(f"{name}={short(value)} must be a sequence of sizes, such as (64, 64)")
        for size in value:
            require_whole(1, MOST_UNITS, **{name: size})


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def is_number(value: object) -> bool:
    """Whether a value is a real number; booleans are not."""
    number = plain(value)
    return isinstance(number, int | float) and not isinstance(number, bool)


def expanded(place: str | Path) -> Path:
    """Returns a path with `~` expanded.

    Raises:
      ValueError: it begins with the home directory of an unknown user.
    """
    try:
        return Path(place).expanduser()
    except RuntimeError:
        raise ValueError(f"{str(place)!r} begins with a home directory that cannot be determined") from None
