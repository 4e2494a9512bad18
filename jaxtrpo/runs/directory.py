"""The directory of a run: its files, its lock, and atomic writes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from jaxtrpo.config.checks import expanded

METRICS_FILE = "metrics.csv"
POLICY_FILE = "policy.msgpack"
CONFIG_FILE = "config.json"
CHECKPOINT_FILE = "checkpoint.msgpack"
CHECKPOINT_BEFORE = "checkpoint.before.msgpack"  # in case the newest is damaged
WANDB_FILE = "wandb-run.txt"  # id of the run of Weights & Biases
TENSORBOARD = "tensorboard"  # directory of event files
# Removed in this order, so that a checkpoint or policy never lies beside the metrics of another run.
RUN_FILES = (CHECKPOINT_FILE, CHECKPOINT_BEFORE, POLICY_FILE, METRICS_FILE, CONFIG_FILE, WANDB_FILE)
BEST = "best"  # symbolic link to the best snapshot
SNAPSHOT = re.compile(r"(best|step)-\d{10,}")  # directories of snapshots, named by environment steps
HOW_TO_RESUME = "; what was saved before is intact, and resume=True (--resume) resumes from it"
_ASKING = threading.Lock()
NOTHING_SAVED = "; nothing was saved that could be resumed"


class OutputError(OSError):
    """The output of a run can no longer be written; the message is one sentence."""


class DirectoryInUse(BlockingIOError):
    """Another run writes, or has just written, to the directory; the message is one sentence."""


def open_directory(path: str | Path, *, overwrite: bool = False, resume: bool = False) -> Path:
    """Checks that a run may be written to a directory. Changes nothing on disk.

    Args:
      path: directory, which need not exist yet; `~` is the home directory.
      overwrite: accept a directory with a run, which the new one will replace.
      resume: accept a directory with a run that can be resumed.

    Returns:
      The absolute path.

    Raises:
      BlockingIOError: another process is writing to it.
      FileExistsError: it holds a run that is neither to be replaced nor to be resumed, or that cannot be resumed.
      NotADirectoryError: the path, or one of its parents, is a file.
      PermissionError: no permission to write to it or to create it.
      OSError: the system cannot look it up.
      ValueError: the path is empty or invalid.
    """
    what = f"out={str(path)!r}"
    if not str(path):
        raise ValueError(f"{what} must name a directory")
    directory = expanded(path).absolute()
    require_writable(directory, what)
    try:
        found = holds_run(directory)
    except OSError as error:
        raise type(error)(f"{what} cannot be used: {error.strerror}") from error
    if found:
        with hold(directory):
            pass
    if found and resume and not has_checkpoint(directory):
        if _exists(directory / CHECKPOINT_BEFORE):
            raise FileExistsError(
                f"{what} holds a run without {CHECKPOINT_FILE}, but the previous checkpoint is there: rename "
                f"{CHECKPOINT_BEFORE} to {CHECKPOINT_FILE} to resume from it"
            )
        raise FileExistsError(
            f"{what} holds a run without {CHECKPOINT_FILE}, which cannot be resumed; use overwrite=True (--overwrite) "
            "to replace it"
        )
    if found and not (overwrite or resume):
        raise FileExistsError(
            f"{what} already holds a run; use resume=True (--resume) to resume it or overwrite=True (--overwrite) "
            "to replace it"
        )
    return directory


def require_writable(directory: Path, what: str) -> None:
    """Checks that files can be created in a directory or, if there is none yet, where it would be. Changes nothing.

    Args:
      directory: absolute path.
      what: setting that the errors name, with its value.

    Raises:
      NotADirectoryError: the path, or one of its parents, is a file.
      PermissionError: no permission to write to it or to create it.
      OSError: the system cannot look it up, or create files there.
      ValueError: the path is invalid.
    """
    try:
        nearest = next(place for place in (directory, *directory.parents) if _exists(place))
    except OSError as error:
        raise type(error)(f"{what} cannot be used: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{what} cannot be used: {error}") from error
    if not nearest.is_dir():
        raise NotADirectoryError(f"{what}: {nearest} is not a directory")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(f"{what}: no permission to write to {nearest}")
    try:
        with tempfile.TemporaryFile(dir=nearest):  # /proc permits it, but creates nothing
            pass
    except OSError as error:
        raise type(error)(f"{what}: no file can be created in {nearest}: {error.strerror}") from error


def holds_run(directory: Path) -> bool:
    """Whether there is anything in a directory that a new run would replace."""
    if any(_exists(directory / name) for name in (*RUN_FILES, TENSORBOARD, BEST)):
        return True
    return directory.is_dir() and any(SNAPSHOT.fullmatch(place.name) for place in directory.iterdir())


def has_checkpoint(directory: Path) -> bool:
    """Whether a directory holds a run that can be resumed."""
    return _exists(directory / CHECKPOINT_FILE)


def _may_hold_checkpoint(directory: Path) -> bool:
    try:
        return has_checkpoint(directory)
    except OSError:  # its files cannot be looked at, and so have not been touched
        return True


def _exists(path: Path) -> bool:
    """Whether a path exists, be it a broken link; unlike `Path.exists`, raises OSError if the system cannot tell."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def clear(directory: Path, *, keep_run: bool = False) -> None:
    """Removes the files of a run, including incomplete ones, and nothing else.

    Call it only once all settings of the new run have been checked.

    Args:
      directory: directory locked by `hold`.
      keep_run: remove incomplete files only.
    """
    for name in RUN_FILES:
        for unfinished in (*left_unfinished(directory / name), _link_before(directory / name)):  # by a killed run
            unfinished.unlink(missing_ok=True)
        if not keep_run:
            (directory / name).unlink(missing_ok=True)
    if not keep_run and not (directory / TENSORBOARD).is_symlink():
        shutil.rmtree(directory / TENSORBOARD, ignore_errors=True)
    for place in directory.iterdir():
        name = place.name
        unfinished = name.startswith(".") and SNAPSHOT.fullmatch(name[1:].partition(".")[0])  # of `write_directory`
        if place.is_symlink():
            if name == f".{BEST}" or (name == BEST and not keep_run):
                place.unlink()
        elif place.is_dir() and (unfinished or (SNAPSHOT.fullmatch(name) and not keep_run)):
            shutil.rmtree(place)


@contextlib.contextmanager
def hold(directory: Path, *, new: bool = False) -> Iterator[None]:
    """Locks a directory, which is created if necessary, against other runs.

    Args:
      directory: directory of a run.
      new: it held no run when the settings were checked, so one that is there now belongs to somebody else.

    Raises:
      DirectoryInUse: another run holds the lock, or began and ended since the settings were checked.
      OutputError: the directory cannot be created or read.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise OutputError(f"out={str(directory)!r} cannot be used: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released whenever the process ends
        except BlockingIOError as error:
            raise DirectoryInUse(f"out={str(directory)!r} is being written to by another run") from error
        if new and holds_run(directory):
            raise DirectoryInUse(f"out={str(directory)!r} holds a run that another process has just written")
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def writing(directory: Path, advice: str | None = None) -> Iterator[None]:
    """Turns OSError raised by writes to a directory into OutputError.

    Args:
      directory: directory named in the error.
      advice: end of the message; None says whether the run in the directory can be resumed.

    Raises:
      OutputError: a write failed.
    """
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        why = error.strerror or str(error)
        if advice is None:
            advice = HOW_TO_RESUME if _may_hold_checkpoint(directory) else NOTHING_SAVED
        raise OutputError(f"out={str(directory)!r} cannot be written to: {why}{advice}") from error


def write_directory(path: Path, write: Callable[[Path], None]) -> None:
    """Replaces a directory; an interrupted write never leaves an incomplete one under its name.

    Args:
      path: directory to replace.
      write: writes the files into the directory it is given.
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
    """Keeps a file, if it exists, under another name by a hard link; does nothing if links are not supported."""
    if path.exists() and not (before.exists() and os.path.samefile(path, before)):
        temporary = _link_before(before)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
            os.link(path, temporary)
            os.replace(temporary, before)


def _link_before(before: Path) -> Path:
    return before.with_name(f".{before.name}.link")  # the directory is locked


def link_whole(path: Path, target: str) -> None:
    """Creates or replaces a symbolic link atomically."""
    temporary = path.with_name(f".{path.name}")  # the directory is locked
    temporary.unlink(missing_ok=True)
    os.symlink(target, temporary)
    os.replace(temporary, path)


def read_text(path: Path, *, errors: str = "strict") -> str:
    """Reads a text file; `errors` as for `bytes.decode`.

    Raises:
      FileNotFoundError: there is none.
      ValueError: it is something else, such as a pipe, which would be waited for without end, or is not UTF-8.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file")
    return path.read_text(encoding="utf-8", errors=errors)


def left_unfinished(path: Path, suffix: str = "") -> list[Path]:
    """Returns the temporary files beside a file that `tempfile` named after it: left by a process that was killed."""
    named = re.compile(re.escape(f".{path.name}.") + "[a-z0-9_]{8}" + re.escape(suffix))
    return [file for file in path.parent.iterdir() if named.fullmatch(file.name)]


def write_whole(path: Path, data: bytes) -> None:
    """Replaces a file atomically: readers see either the old or the new content."""
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
    with _ASKING:  # several threads may write runs; what one of them sets for a moment, another would take for the mask
        mask = os.umask(0)
        os.umask(mask)
    return mask
