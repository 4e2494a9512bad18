"""Small tables on disk."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def write_csv(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A file with a line of column names and one line a row."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """What `append_line` has written; nothing if there is no file yet."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append_line(path: Path, values: Mapping[str, Any]) -> None:
    """A line of JSON at the end of a file."""
    with path.open("a") as file:
        file.write(json.dumps(values) + "\n")
