"""The interface of all commands, and checks that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from jaxtrpo.config.checks import expanded
from jaxtrpo.runs.directory import RUN_FILES, require_writable

FAILED, INPUT_ERROR, INTERRUPTED = 1, 2, 130

Work = Callable[[], int]  # runs the command and returns the exit code


class Command(Protocol):
    """The parsed arguments of a command."""

    def prepare(self) -> Work:
        """Validates all user input, raising ValueError, TypeError or OSError, and returns the work to do."""
        ...


def as_flags(settings: Mapping[str, Any]) -> list[str]:
    """Returns the flags of `jaxtrpo train` for settings by name."""
    flags: list[str] = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return flags


def needs(command: str, error: ModuleNotFoundError, extra: str) -> ValueError:
    """Returns the error for a missing optional package; `extra` installs it."""
    return ValueError(f"`jaxtrpo {command}` needs the package {error.name}: pip install 'jaxtrpo[{extra}]'")


def find_modules_here(env: str | None) -> None:
    """Lets Python find modules in the current directory, if the environment's name says a module ("module:NAME")."""
    from jaxtrpo.envs.modules import search_first, split

    if env is not None and split(env) is not None:
        search_first(Path.cwd())


def require_some(directories: Sequence[Path]) -> None:
    """Raises ValueError if no directory was given."""
    if not directories:
        raise ValueError("DIR: give the directory of at least one run")


def require_place(out: Path, name: str = "out") -> None:
    """Raises OSError if a file cannot be written because of its directory, or is a directory or a file of a run.

    `name` is the setting that holds its path.
    """
    what, place = f"{name}={str(out)!r}", expanded(out).absolute()
    if not place.parent.is_dir():
        raise NotADirectoryError(f"{what}: no such directory: {out.parent}")
    if place.is_dir():
        raise IsADirectoryError(f"{what} is a directory; give the name of a file")
    if place.name in RUN_FILES:
        raise FileExistsError(f"{what}: files of runs are named {place.name}; choose another name")
    require_writable(place.parent, what)
