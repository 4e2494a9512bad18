"""Checks of settings; the errors name the setting, its value and what is accepted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jaxtrpo.config.messages import short


def require_whole(least: int, **values: object) -> None:
    """Raises ValueError for a value that is not an integer of at least `least`."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={short(value)} must be a whole number of at least {least}")


def require_number(what: str, test: Callable[[float], bool], **values: Any) -> None:
    """Raises ValueError for a value that is not a finite number or fails `test`; `what` says what is accepted."""
    for name, value in values.items():
        if not is_number(value) or not math.isfinite(value) or not test(value):
            raise ValueError(f"{name}={short(value)} must be {what}")


def require_positive(**values: Any) -> None:
    """Raises ValueError for a value that is not a positive number."""
    require_number("positive", lambda value: value > 0, **values)


def require_not_negative(**values: Any) -> None:
    """Raises ValueError for a value that is not a number of at least 0."""
    require_number("at least 0", lambda value: value >= 0, **values)


def require_share(**values: Any) -> None:
    """Raises ValueError for a value that is not between 0 and 1, inclusive."""
    require_number("between 0 and 1", lambda value: 0 <= value <= 1, **values)


def require_bool(**values: object) -> None:
    """Raises ValueError for a value that is neither True nor False."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name}={short(value)} must be True or False")


def require_sizes(**values: object) -> None:
    """Raises ValueError for a value that is not a sequence of layer sizes."""
    for name, value in values.items():
        if not isinstance(value, (tuple, list)):
            raise ValueError(f"{name}={short(value)} must be a sequence of sizes, such as (64, 64)")
        for size in value:
            require_whole(1, **{name: size})


def is_number(value: object) -> bool:
    """Whether a value is a real number; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
