"""The metrics of a run: one row an update, in memory and in a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np

Value = float | int | bool | None


class Metrics:
    """A table that grows by rows. The first row fixes the columns."""

    def __init__(self, path: Path | None = None):
        """Starts an empty table.

        Args:
          path: CSV file, replaced by the first row and complete after each; nothing is written without it.
        """
        self._path = path
        self._rows: list[dict[str, Value]] = []

    def add(self, row: Mapping[str, Value]) -> None:
        """Appends a row. None and NaN are blanks.

        Raises:
          ValueError: the columns are not those of the first row, or a value is no single number.
        """
        names = list(self._rows[0] if self._rows else row)
        if set(row) != set(names):
            raise ValueError(f"columns {sorted(set(row) ^ set(names))} are not in both this row and the first")
        values = {name: _number(name, row[name]) for name in names}
        if self._path is not None:
            # Opened anew for every row, so that a file is whole whenever and however a run ends.
            with open(self._path, "a" if self._rows else "w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, names, lineterminator="\n")
                if not self._rows:
                    writer.writeheader()
                writer.writerow({name: _cell(value) for name, value in values.items()})
        self._rows.append(values)

    def columns(self) -> dict[str, np.ndarray]:
        """Every column by name: integers if all its values are whole numbers, else float64 with NaN for blanks."""
        return {name: _column([row[name] for row in self._rows]) for name in (self._rows[0] if self._rows else ())}


def _number(name: str, value: object) -> Value:
    """A plain Python number of whatever kind of scalar; None for NaN."""
    if value is None:
        return None
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise ValueError(f"{name}={value!r} is no single number")
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
