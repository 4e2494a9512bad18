"""The metrics of a run: one row per update, in memory and in a CSV file."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from jaxtrpo.config.messages import short
from jaxtrpo.runs.directory import write_whole

Value = float | int | bool | None
Row = Mapping[str, Value]
ADDED = ("mean_length",)  # columns that runs of earlier versions lack; they are resumed without


class Metrics:
    """A table of metrics to which rows are appended. The first row fixes the columns."""

    def __init__(self, path: Path | None = None, columns: Mapping[str, np.ndarray] = MappingProxyType({})):
        """Creates a table.

        Args:
          path: CSV file, replaced by the first rows and complete after each append; None writes nothing.
          columns: initial content, in the format of `Metrics.columns`.
        """
        self._path = path
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        self.rows = [{name: _number(name, value) for name, value in zip(columns, row, strict=True)} for row in values]
        if self.rows and path is not None:
            write_whole(path, _as_csv(columns, self.rows, header=True).encode())

    def add(self, *rows: Row) -> None:
        """Appends rows. None and NaN become blank cells.

        Raises:
          ValueError: the columns differ from those of the first row, or a value is not a scalar number.
        """
        names = list(self.rows[0] if self.rows else rows[0])
        new = []
        for row in rows:
            row = {name: value for name, value in row.items() if name in names or name not in ADDED}
            if set(row) != set(names):
                raise ValueError(f"columns {sorted(set(row) ^ set(names))} must be in all rows or none")
            new.append({name: _number(name, row[name]) for name in names})
        if self._path is not None:
            lost = bool(self.rows) and not self._path.exists()  # somebody removed the file
            written = [*self.rows, *new] if lost else new
            whole = lost or not self.rows
            _append(self._path, _as_csv(names, written, header=whole).encode(), overwrite=whole)
        self.rows += new

    def columns(self, number: int | None = None) -> dict[str, np.ndarray]:
        """Returns the columns by name: int64 if all values are integers, else float64 with NaN for blanks.

        Args:
          number: number of rows, from the first; None returns all.
        """
        rows = self.rows[:number]
        return {name: _column([row[name] for row in rows]) for name in (rows[0] if rows else ())}


def _append(path: Path, data: bytes, *, overwrite: bool) -> None:
    """Appends all data or none. The file is reopened each time, so that it is complete however the run ends."""
    with open(path, "wb" if overwrite else "ab", buffering=0) as file:
        before = file.tell()
        try:
            while data:  # a disk that is nearly full accepts a part
                data = data[file.write(data) :]
        except OSError:
            os.ftruncate(file.fileno(), before)
            raise


def _as_csv(names: Iterable[str], rows: Iterable[Row], *, header: bool) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(names), lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _number(name: str, value: object) -> Value:
    """Converts a scalar of any type to a Python number, and NaN to None."""
    if value is None:
        return None
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise ValueError(f"{name}={short(value)} must be a scalar number")
    number = array.item()
    return None if number != number else number


def _cell(value: Value) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, int) else f"{value:.6g}"


def _column(values: list[Value]) -> np.ndarray:
    if all(isinstance(value, int) for value in values):
        return np.array([int(value or 0) for value in values], np.int64)
    return np.array([np.nan if value is None else value for value in values], np.float64)
