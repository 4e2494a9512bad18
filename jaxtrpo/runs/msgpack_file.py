"""Files of arrays and plain values that say what format they have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from flax import serialization

from jaxtrpo.config.messages import short
from jaxtrpo.runs.directory import write_whole

T = TypeVar("T")


def write_msgpack(path: Path, version: int, content: dict[str, Any]) -> None:
    """Replaces a file by `content`: dictionaries, lists, strings, numbers and NumPy arrays."""
    write_whole(path, serialization.msgpack_serialize({"format": version, **content}))


def read_msgpack(path: Path, version: int, build: Callable[[dict[str, Any]], T]) -> T:
    """Reads what `write_msgpack` wrote.

    Args:
      path: of a file.
      version: of the format, as it should be.
      build: makes something of the content.

    Raises:
      ValueError: it is damaged, something else, or of another version.
    """
    data = path.read_bytes()
    try:
        content: Any = serialization.msgpack_restore(data)
        found = content.pop("format")
        built = build(content) if found == version else None
    except Exception as error:  # the decoder raises errors of many kinds on bytes that are not its own
        raise ValueError(f"{path} is no file of jaxtrpo, or damaged") from error
    if built is None:
        raise ValueError(f"{path} has format {short(found)}; this version of jaxtrpo reads format {version}")
    return built
