"""Parts of error messages: values shortened to fit, and the origin of errors in user code."""

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
    """Returns the `repr` of a value on one line, truncated to `length` characters."""
    try:
        text = repr(value)
    except Exception:
        text = f"an object of type {type_name(value)}"
    return one_line(text, length)


def one_line(text: str, length: int = LENGTH) -> str:
    """Returns a text without line breaks, truncated to `length` characters."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 3] + "..."


def type_name(value: object) -> str:
    """Returns the qualified name of a value's type, such as gym.core.Env; built-in types have no module prefix."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def described(error: BaseException, length: int = 500) -> str:
    """Returns the type, message and location of an error that was raised in user code.

    The location is the innermost frame of the user's own code, which is neither in jaxtrpo nor in an installed package
    nor in Python itself; if there is none, the innermost frame outside of jaxtrpo. The text of that line replaces an
    empty message.
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
    """Directories of Python's standard library and of installed packages."""
    return tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
