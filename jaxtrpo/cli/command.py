"""The interface of all commands, and checks that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

FAILED, INPUT_ERROR, INTERRUPTED = 1, 2, 130

Work = Callable[[], int]  # runs the command and returns the exit code


class Command(Protocol):
    """The parsed arguments of a command."""

    def prepare(self) -> Work:
        """Validates all user input, raising ValueError, TypeError or OSError, and returns the work to do."""
        ...


def needs(command: str, error: ModuleNotFoundError, extra: str) -> ValueError:
    """Returns the error for a missing optional package; `extra` installs it."""
    return ValueError(f"`jaxtrpo {command}` needs the package {error.name}: pip install 'jaxtrpo[{extra}]'")


def require_some(directories: Sequence[Path]) -> None:
    """Raises ValueError if no directory was given."""
    if not directories:
        raise ValueError("DIR: give the directory of at least one run")


def require_place(out: Path) -> None:
    """Raises NotADirectoryError if the parent directory of an output file does not exist."""
    if not out.expanduser().absolute().parent.is_dir():
        raise NotADirectoryError(f"out={str(out)!r}: no such directory: {out.parent}")
