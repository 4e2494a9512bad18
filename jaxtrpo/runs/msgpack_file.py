"""Msgpack files of arrays and plain values with a format version and a checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from flax import serialization

from jaxtrpo.config.messages import short
from jaxtrpo.runs.directory import write_whole

T = TypeVar("T")
# A file begins with this mark and the digest of what follows both. Earlier versions wrote neither; no msgpack file of a
# dictionary begins with the mark.
MARK, DIGEST_BYTES = b"jaxtrpo\0", 16


def write_msgpack(path: Path, version: int, content: dict[str, Any]) -> None:
    """Writes dictionaries, lists, strings, numbers and NumPy arrays to a file, which is replaced atomically."""
    data = serialization.msgpack_serialize({"format": version, **content})
    write_whole(path, MARK + _digest(data) + data)


def read_msgpack(path: Path, version: int, build: Callable[[dict[str, Any]], T]) -> T:
    """Reads a file written by `write_msgpack`.

    Args:
      path: file to read.
      version: expected format version.
      build: makes the result from the content of the file.

    Raises:
      ValueError: the file is damaged, be it by one bit, is not one of these files, or has another format version.
    """
    data = path.read_bytes()
    try:
        content: Any = serialization.msgpack_restore(content_of(data))
        found = content.pop("format")
        built = build(content) if found == version else None
    except Exception as error:  # the decoder raises many types of errors on other files
        raise ValueError(f"{path} is damaged or is not a file of jaxtrpo") from error
    if built is None:
        raise ValueError(f"{path} has format {short(found)}; this version of jaxtrpo reads format {version}")
    return built


def content_of(data: bytes) -> bytes:
    """Returns the msgpack part of a file.

    Raises:
      ValueError: it does not match its checksum.
    """
    if not data.startswith(MARK):
        return data
    begin = len(MARK) + DIGEST_BYTES
    if _digest(data[begin:]) != data[len(MARK) : begin]:
        raise ValueError("the checksum does not match")
    return data[begin:]


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
