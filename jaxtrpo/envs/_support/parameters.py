"""Parameters of functions that users write."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def takes(function: Callable[..., Any], keyword: str, *, any_name: bool = False) -> bool:
    """Returns whether a function has a parameter of that name; `**kwargs` only counts with `any_name`."""
    try:
        parameters = inspect.signature(function).parameters
        others = any_name and any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
        return keyword in parameters or others
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
