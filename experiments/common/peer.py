"""Another library, in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

BASELINES = Path(__file__).parent.parent / "baselines"
PEERS = ("envpool", "sb3_contrib", "tianshou", "torch")


def require_peers(modules: Sequence[str] = PEERS) -> None:
    """Stops with one sentence, before anything is measured, unless the extra is installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"{', '.join(missing)}: not installed; run: pip install '.[experiments,baselines]'")


def require_in(python: str, modules: Sequence[str]) -> None:
    """Stops with one sentence, before anything is measured, unless another interpreter can import these modules."""
    if subprocess.run([python, "-c", f"import {', '.join(modules)}"], capture_output=True).returncode:
        names = " and ".join(modules)
        raise SystemExit(f"{python} cannot import {names}; install them there, or give --python")


def answer_of(script: str, flags: Mapping[str, Any], *, python: str, threads: int | None = None) -> dict[str, Any]:
    """Runs a script of `baselines` with another interpreter, and returns the line of JSON that it prints last."""
    command = [python, str(BASELINES / script)]
    command += [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    environ = {**os.environ, "PYTHONPATH": str(BASELINES.parent)}
    if threads is not None:
        environ["OMP_NUM_THREADS"] = str(threads)
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@contextlib.contextmanager
def peer(script: str, words: Sequence[Any]) -> Iterator[Callable[[], float]]:
    """Starts a script of `baselines` that works only while asked to: a call makes a round, and returns its seconds.

    Raises:
      RuntimeError: the script ended.
    """
    command = [sys.executable, str(BASELINES / script), *map(str, words)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        to, back = process.stdin, process.stdout

        def answer() -> str:
            line = back.readline()
            if not line:
                raise RuntimeError(f"{' '.join(command)} ended")
            return line

        def one_round() -> float:
            to.write("\n")
            to.flush()
            return float(answer())

        answer()  # ready
        yield one_round  # closing its standard input afterwards ends it
