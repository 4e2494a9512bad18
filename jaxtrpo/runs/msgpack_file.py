"""Msgpack files of arrays and plain values with a format version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from flax import serialization

from jaxtrpo.config.messages import short
from jaxtrpo.runs.directory import write_whole

T = TypeVar("T")


def write_msgpack(path: Path, version: int, content: dict[str, Any]) -> None:
    """Writes dictionaries, lists, strings, numbers and NumPy arrays to a file, which is replaced atomically."""
    write_whole(path, serialization.msgpack_serialize({"format": version, **content}))


def read_msgpack(path: Path, version: int, build: Callable[[dict[str, Any]], T]) -> T:
    """Reads a file written by `write_msgpack`.

    Args:
      path: file to read.
      version: expected format version.
      build: makes the result from the content of the file.

    Raises:
      ValueError: the file is damaged, is not one of these files, or has another format version.
    """
    data = path.read_bytes()
    try:
        content: Any = serialization.msgpack_restore(data)
        found = content.pop("format")
        built = build(content) if found == version else None
    except Exception as error:  # the decoder raises many types of errors on other files
        raise ValueError(f"{path} is damaged or is not a file of jaxtrpo") from error
    if built is None:
        raise ValueError(f"{path} has format {short(found)}; this version of jaxtrpo reads format {version}")
    return built
