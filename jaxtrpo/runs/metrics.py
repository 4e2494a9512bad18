"""The metrics of a run: one row per update, in memory and in a CSV file."""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from jaxtrpo.config.messages import short
from jaxtrpo.runs.directory import write_whole

Value = float | int | bool | None
Row = Mapping[str, Value]
NO_VALUES = np.zeros(0, np.int64)
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
        self._columns = {name: _Column(column) for name, column in columns.items() if len(column)}
        if self._columns and path is not None:
            write_whole(path, _as_csv(self._columns, self._rows(), header=True).encode())

    def __len__(self) -> int:
        """Number of rows."""
        return len(next(reversed(self._columns.values()), ()))  # the last that `add` extends, if it is interrupted

    def row(self, number: int) -> Row:
        """Returns one row; negative numbers count from the end."""
        number = range(len(self))[number]
        return {name: column[number] for name, column in self._columns.items()}

    def _rows(self) -> Iterator[Row]:
        return map(self.row, range(len(self)))

    def add(self, *rows: Row) -> None:
        """Appends rows. None and NaN become blank cells.

        Raises:
          ValueError: the columns differ from those of the first row, or a value is not a scalar number.
        """
        names = list(self._columns or rows[0])
        new = []
        for row in rows:
            row = {name: value for name, value in row.items() if name in names or name not in ADDED}
            if set(row) != set(names):
                raise ValueError(f"columns {sorted(set(row) ^ set(names))} must be in all rows or none")
            new.append({name: _number(name, row[name]) for name in names})
        if self._path is not None:
            lost = len(self) > 0 and not self._path.exists()  # somebody removed the file
            written = itertools.chain(self._rows() if lost else (), new)
            whole = lost or not len(self)
            _append(self._path, _as_csv(names, written, header=whole).encode(), overwrite=whole)
        for name in names:
            column = self._columns.setdefault(name, _Column())
            for row in new:
                column.append(row[name])

    def columns(self, number: int | None = None) -> dict[str, np.ndarray]:
        """Returns the columns by name: int64 if all values are integers, else float64 with NaN for blanks.

        Args:
          number: number of rows, from the first; None returns all.
        """
        number = len(self) if number is None else number
        return {name: column.array(number) for name, column in self._columns.items() if number}


class _Column:
    """Values of one column, of eight bytes each; a long run has millions of rows."""

    def __init__(self, values: np.ndarray = NO_VALUES):
        whole = values.dtype.kind in "biu"
        self._values: array[Any] = array("q" if whole else "d", values.tolist())
        # Number of values before the first that is not an integer; None if there is none.
        self._integers: int | None = None if whole else 0

    def append(self, value: Value) -> None:
        if self._integers is None and not isinstance(value, int):
            self._integers, self._values = len(self), array("d", self._values)
        self._values.append(math.nan if value is None else value)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, number: int) -> Value:
        value = self._values[number]
        return None if math.isnan(value) else value

    def array(self, number: int) -> np.ndarray:
        """Returns the first values."""
        whole = self._integers is None or self._integers >= number
        return np.array(self._values[:number], np.int64 if whole else np.float64)


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
