"""What every command is: words that become work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

FAILED, INPUT_ERROR, INTERRUPTED = 1, 2, 130

Work = Callable[[], int]  # to an exit code


class Command(Protocol):
    """The words of a command, read."""

    def prepare(self) -> Work:
        """Checks everything that a person may get wrong; raises ValueError, TypeError or OSError."""
        ...


def needs(command: str, error: ModuleNotFoundError, extra: str) -> ValueError:
    """One sentence for a package that a command needs and that is not installed."""
    return ValueError(f"`jaxtrpo {command}` needs the package {error.name}: pip install 'jaxtrpo[{extra}]'")


def require_some(directories: Sequence[Path]) -> None:
    """Raises ValueError if no run was given."""
    if not directories:
        raise ValueError("DIR: give the directory of at least one run")


def require_place(out: Path) -> None:
    """Raises NotADirectoryError if there is no directory in which a file could lie."""
    if not out.expanduser().absolute().parent.is_dir():
        raise NotADirectoryError(f"out={str(out)!r}: there is no directory {out.parent}")
