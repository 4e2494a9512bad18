"""Training with the code of other commits."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common.runs import TRAIN, as_flags, with_cache
from jaxtrpo.runs.directory import METRICS_FILE

HERE = Path(__file__).parents[2]


def _check_out(commit: str, folder: Path) -> None:
    """Lays a commit out; the repository and its work tree stay as they are."""
    packed = subprocess.run(["git", "archive", commit], cwd=HERE, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")


@contextlib.contextmanager
def then_and_now(commit: str) -> Iterator[tuple[Path, dict[str, Path]]]:
    """A temporary folder, and where the code of a commit ("then") and that which lies here ("now") are."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        code = {"then": folder / "code", "now": HERE}
        _check_out(commit, code["then"])
        for place in code.values():
            _require_own_code(place)
        yield folder, code


def run(code: Path, env: str, settings: Mapping[str, Any], out: Path, cache: Path) -> list[dict[str, str]]:
    """Trains with the code that lies there; the rows of metrics.csv."""
    # As many devices whatever the machine has.
    environment = {**with_cache(cache), "PYTHONPATH": str(code), "JAX_NUM_CPU_DEVICES": str(settings["actors"])}
    command = [*TRAIN, env, *as_flags(settings), "--quiet", "--out", str(out)]
    subprocess.run(command, cwd=code, env=environment, check=True, stdout=subprocess.DEVNULL)
    with (out / METRICS_FILE).open() as file:
        return list(csv.DictReader(file))


def _require_own_code(code: Path) -> None:
    """Stops unless a command that is given there runs the code that lies there."""
    environment = {**os.environ, "PYTHONPATH": str(code)}
    ask = [sys.executable, "-c", "import jaxtrpo; print(jaxtrpo.__file__)"]
    found = subprocess.run(ask, cwd=code, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    if Path(found).resolve().parent.parent != code.resolve():
        raise SystemExit(f"in {code} Python takes {found}")
