"""The directory of a run: what lies in it, and when it may be written to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

METRICS_FILE = "metrics.csv"
POLICY_FILE = "policy.msgpack"
CONFIG_FILE = "config.json"
CHECKPOINT_FILE = "checkpoint.msgpack"
CHECKPOINT_BEFORE = "checkpoint.before.msgpack"  # in case that the newest turns out to be damaged
WANDB_FILE = "wandb-run.txt"  # what Weights & Biases calls the run
TENSORBOARD = "tensorboard"  # a directory of event files
# Removed in this order: there is never a state or a policy beside the metrics of another run.
RUN_FILES = (CHECKPOINT_FILE, CHECKPOINT_BEFORE, POLICY_FILE, METRICS_FILE, CONFIG_FILE, WANDB_FILE)
BEST = "best"  # a link to the directory of the best state
KEPT = re.compile(r"(best|step)-\d{10,}")  # directories of states, by their environment steps
GOES_ON = "; what was saved before is whole, and resume=True (--resume) goes on with it"


class OutputError(OSError):
    """What a run should leave cannot be written any more; the message is a sentence."""


def open_directory(path: str | Path, *, overwrite: bool = False, resume: bool = False) -> Path:
    """Checks that a run may be written to a directory. Changes nothing on disk.

    Args:
      path: need not exist yet; `~` is the home directory.
      overwrite: the directory may hold a run, which the new one will replace.
      resume: the directory may hold a run that can go on.

    Returns:
      The absolute path.

    Raises:
      BlockingIOError: another process is writing to it.
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
    if holds_run:
        with hold(directory):
            pass
    if holds_run and resume and not has_checkpoint(directory):
        raise FileExistsError(
            f"{what} holds a run without {CHECKPOINT_FILE}, which cannot go on; use overwrite=True (--overwrite) to "
            "replace it"
        )
    if holds_run and not (overwrite or resume):
        raise FileExistsError(
            f"{what} already holds a run; use resume=True (--resume) to go on with it or overwrite=True (--overwrite) "
            "to replace it"
        )
    return directory


def has_checkpoint(directory: Path) -> bool:
    """Whether a run lies there that can go on."""
    return _exists(directory / CHECKPOINT_FILE)


def _exists(path: Path) -> bool:
    """Whether there is anything of that name; unlike `Path.exists`, raises if the system cannot tell."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def clear(directory: Path, *, keep_run: bool = False) -> None:
    """Removes the files of the run that a directory holds, and what it left half written, and only those.

    To be called when nothing can be wrong with the new run any more.

    Args:
      directory: that is held.
      keep_run: removes only what is half written.
    """
    for name in RUN_FILES:
        for unfinished in directory.glob(f".{name}.*"):  # by a run that was killed in `write_whole`
            unfinished.unlink()
        if not keep_run:
            (directory / name).unlink(missing_ok=True)
    if not keep_run and not (directory / TENSORBOARD).is_symlink():
        shutil.rmtree(directory / TENSORBOARD, ignore_errors=True)
    for place in directory.iterdir():
        name = place.name
        unfinished = name.startswith(".") and KEPT.fullmatch(name[1:].partition(".")[0])  # in `write_directory`
        if place.is_symlink():
            if name == f".{BEST}" or (name == BEST and not keep_run):
                place.unlink()
        elif place.is_dir() and (unfinished or (KEPT.fullmatch(name) and not keep_run)):
            shutil.rmtree(place)


@contextlib.contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Makes a directory if there is none, and keeps other runs from writing to it.

    Raises:
      BlockingIOError: another one does.
    """
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # is gone with the process, however it ends
        except BlockingIOError as error:
            raise BlockingIOError(f"out={str(directory)!r} is being written to by another run") from error
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def writing(directory: Path, what_then: str = GOES_ON) -> Iterator[None]:
    """Around what writes to a directory.

    Args:
      directory: named in the error, which also says `what_then`.
      what_then: what a person may do; by default, to a directory of a run.

    Raises:
      OutputError: it cannot be written to.
    """
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        why = error.strerror or str(error)
        raise OutputError(f"out={str(directory)!r} cannot be written to: {why}{what_then}") from error


def write_directory(path: Path, write: Callable[[Path], None]) -> None:
    """Replaces a directory so that there is all of the new one or nothing new.

    Args:
      path: of it.
      write: puts its files into the directory that it is given.
    """
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        write(temporary)
        os.chmod(temporary, 0o777 & ~_umask())  # mkdtemp's directories are private
        if path.exists():
            shutil.rmtree(path)
        os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def link_before(path: Path, before: Path) -> None:
    """Lets a file, if there is one, stay under another name when it is replaced; not where there are no links."""
    if path.exists() and not (before.exists() and os.path.samefile(path, before)):
        temporary = before.with_name(f".{before.name}.link")  # no one else writes here
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
            os.link(path, temporary)
            os.replace(temporary, before)


def link_whole(path: Path, target: str) -> None:
    """Makes a symbolic link, or lets the one that is there point elsewhere, at once."""
    temporary = path.with_name(f".{path.name}")  # no one else writes here
    temporary.unlink(missing_ok=True)
    os.symlink(target, temporary)
    os.replace(temporary, path)


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
