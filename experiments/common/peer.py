"""Another library, timed in a process of its own that works only while it is asked to."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

BASELINES = Path(__file__).parent.parent / "baselines"
PEERS = ("envpool", "sb3_contrib", "tianshou", "torch")


def require_peers(modules: Sequence[str] = PEERS) -> None:
    """Stops with one sentence, before anything is measured, unless the extra is installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"{', '.join(missing)}: not installed; run: pip install '.[experiments,baselines]'")


@contextlib.contextmanager
def peer(script: str, words: Sequence[Any]) -> Iterator[Callable[[], float]]:
    """Starts a script of `baselines` that says when it is ready; a call asks for one round and returns its seconds.

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
