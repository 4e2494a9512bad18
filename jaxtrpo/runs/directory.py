"""The directory of a run: what lies in it, and when it may be written to."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from pathlib import Path

from jaxtrpo.config import Config

METRICS_FILE = "metrics.csv"
POLICY_FILE = "policy.msgpack"
CONFIG_FILE = "config.json"
# Removed in this order: there is never a policy beside the metrics of another run.
RUN_FILES = (POLICY_FILE, METRICS_FILE, CONFIG_FILE)


def open_directory(path: str | Path, overwrite: bool) -> Path:
    """Checks that a run may be written to a directory. Changes nothing on disk; `claim` does.

    Args:
      path: need not exist yet; `~` is the home directory.
      overwrite: the directory may hold a run, which the new one will replace.

    Returns:
      The absolute path.

    Raises:
      FileExistsError: it holds a run, and `overwrite` is False.
      NotADirectoryError: it, or what it should lie in, is a file.
      PermissionError: it may not be written to or created.
      OSError: the system cannot look it up.
      ValueError: the path is empty, or no path at all.
    """
    what = f"out={str(path)!r}"
    if not str(path):
        raise ValueError(f"{what} must name a directory")
    directory = Path(path).expanduser().absolute()
    try:
        nearest = next(place for place in (directory, *directory.parents) if _exists(place))
        holds_run = nearest == directory and any(_exists(directory / name) for name in RUN_FILES)
    except OSError as error:
        raise type(error)(f"{what} cannot be used: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{what} cannot be used: {error}") from error
    if not nearest.is_dir():
        raise NotADirectoryError(f"{what}: {nearest} is not a directory")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(f"{what}: no permission to write to {nearest}")
    if holds_run and not overwrite:
        raise FileExistsError(f"{what} already holds a run; use overwrite=True (--overwrite) to replace it")
    return directory


def _exists(path: Path) -> bool:
    """Whether there is anything of that name; unlike `Path.exists`, raises if the system cannot tell."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def claim(directory: Path) -> None:
    """Makes the directory and removes the files of the run that it held, and only those.

    To be called when nothing can be wrong with the new run any more.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in RUN_FILES:
        (directory / name).unlink(missing_ok=True)


def save_config(directory: Path, env_name: str, config: Config) -> None:
    """Writes the environment's name and every setting as JSON."""
    text = json.dumps({"env": env_name, **dataclasses.asdict(config)}, indent=2) + "\n"
    write_whole(directory / CONFIG_FILE, text.encode())


def write_whole(path: Path, data: bytes) -> None:
    """Replaces a file so that whoever reads it finds all of the old or all of the new content."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's files are private
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
