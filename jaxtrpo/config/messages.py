"""Parts of messages: what a person gave, in bounded length, and where an error came from."""

from __future__ import annotations

import functools
import linecache
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

LENGTH = 200  # characters
_OURS = Path(__file__).parents[1]


def short(value: object, length: int = LENGTH) -> str:
    """`repr` of a value, on one line and not longer than `length` characters."""
    try:
        text = repr(value)
    except Exception:
        text = f"an object of type {type_name(value)}"
    return one_line(text, length)


def one_line(text: str, length: int = LENGTH) -> str:
    """A text without line breaks, not longer than `length` characters."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 3] + "..."


def type_name(value: object) -> str:
    """The type of a value with its module, such as gym.core.Env; without it where that is `builtins`."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def described(error: BaseException, length: int = 500) -> str:
    """Type, message and place of an error that was raised in other people's code.

    The place is the innermost line in the user's own code: neither ours, nor an installed package's, nor Python's. If
    there is none, it is the innermost line that is not ours. Where the message is empty, the line's text stands in.
    """
    message, kind = one_line(str(error), length), type(error).__name__
    frame = _innermost(traceback.extract_tb(error.__traceback__))
    if frame is None:
        return f"{kind}: {message}" if message else kind
    line = linecache.getline(frame.filename, frame.lineno or 0).strip()
    what = message or one_line(line)
    place = f"{frame.filename}:{frame.lineno}, in {frame.name}"
    return f"{kind}: {what} ({place})" if what else f"{kind} ({place})"


def _innermost(frames: Sequence[traceback.FrameSummary]) -> traceback.FrameSummary | None:
    files = [frame for frame in frames if not frame.filename.startswith("<frozen")]  # Python's own
    others = [frame for frame in files if not Path(frame.filename).is_relative_to(_OURS)]
    own = [frame for frame in others if not _is_installed(frame.filename)]
    return (own or others or [None])[-1]


def _is_installed(filename: str) -> bool:
    return any(Path(filename).is_relative_to(place) for place in _installed())


@functools.cache
def _installed() -> tuple[str, ...]:
    """Where Python and packages are."""
    return tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
