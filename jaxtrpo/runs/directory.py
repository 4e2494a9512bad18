"""The directory of a run: what lies in it, and when it may be written to."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from jaxtrpo.config import Config

METRICS_FILE = "metrics.csv"
POLICY_FILE = "policy.msgpack"
CONFIG_FILE = "config.json"
CHECKPOINT_FILE = "checkpoint.msgpack"
# Removed in this order: there is never a state or a policy beside the metrics of another run.
RUN_FILES = (CHECKPOINT_FILE, POLICY_FILE, METRICS_FILE, CONFIG_FILE)
MAY_CHANGE = ("total_steps", "actors")  # when a run goes on


def open_directory(path: str | Path, *, overwrite: bool = False, resume: bool = False) -> Path:
    """Checks that a run may be written to a directory. Changes nothing on disk; `claim` does.

    Args:
      path: need not exist yet; `~` is the home directory.
      overwrite: the directory may hold a run, which the new one will replace.
      resume: the directory may hold a run that can go on.

    Returns:
      The absolute path.

    Raises:
      FileExistsError: it holds a run that is neither to be replaced nor to go on, or cannot go on.
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
    if holds_run and resume and not can_resume(directory):
        raise FileExistsError(f"{what} holds a run without {CHECKPOINT_FILE}, which cannot be resumed")
    if holds_run and not (overwrite or resume):
        raise FileExistsError(
            f"{what} already holds a run; use resume=True (--resume) to go on with it or overwrite=True (--overwrite) "
            "to replace it"
        )
    return directory


def can_resume(directory: Path) -> bool:
    """Whether a run lies there that has saved its state."""
    return (directory / CHECKPOINT_FILE).is_file()


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
    text = json.dumps({"env": env_name, **_plain(config)}, indent=2) + "\n"
    write_whole(directory / CONFIG_FILE, text.encode())


def require_same_run(directory: Path, env_name: str, config: Config) -> None:
    """Checks that the run which lies in a directory is one of this environment with these settings.

    Raises:
      ValueError: one sentence that names the setting.
    """
    path = directory / CONFIG_FILE
    try:
        there = json.loads(path.read_bytes())
        before = there["env"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"resume=True: {path} is missing or damaged") from error
    if before != env_name:
        raise ValueError(f"resume=True: the run in {directory} is of {before}, not {env_name}")
    wanted = _plain(config)
    has = {**_plain(Config()), **there}  # a setting newer than the run had its default
    changed = [name for name in wanted if name not in MAY_CHANGE and has[name] != wanted[name]]
    if changed:
        before, now = (", ".join(f"{name}={of[name]}" for name in changed) for of in (has, wanted))
        raise ValueError(
            f"resume=True: the run in {directory} has {before}, not {now}; only {' and '.join(MAY_CHANGE)} may change"
        )


def _plain(config: Config) -> dict[str, Any]:
    """As it comes back from JSON."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


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
