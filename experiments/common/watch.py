"""Training commands of any library, watched from outside: the clock, the returns, and the memory."""

from __future__ import annotations

import csv
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

MEMORY_EVERY = 1.0  # seconds


class Watched(NamedTuple):
    """What one training showed. Points are ends of updates."""

    env_steps: np.ndarray
    seconds: np.ndarray  # since the command was given
    returns: np.ndarray  # mean of the last 100 episodes; NaN before the first
    memory: np.ndarray  # bytes of the process and its children, every second


def watch(command: Sequence[str], *, metrics: Path | None = None) -> Watched:
    """Runs a command to its end.

    Args:
      command: either prints "update STEPS RETURN" after each update, or writes `metrics`.
      metrics: metrics.csv of a jaxtrpo run.

    Raises:
      CalledProcessError: the command failed.
    """
    begin, begin_of_day = time.perf_counter(), time.time()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    memory: list[int] = []
    watcher = threading.Thread(target=_watch_memory, args=(process, memory))
    watcher.start()
    assert process.stdout is not None
    points = []
    for line in process.stdout:
        words = line.split()
        if words[:1] == ["update"]:
            points.append((float(words[1]), time.perf_counter() - begin, float(words[2])))
    watcher.join()
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, command)
    if metrics is not None:
        points = _points_of(metrics, begin_of_day)
    return Watched(*np.array(points).T, memory=np.array(memory))


def _points_of(metrics: Path, begin: float) -> list[tuple[float, float, float]]:
    """Rows of a metrics.csv; its own clock starts when the command has read its settings, `begin` when it was given."""
    with metrics.open() as file:
        rows = list(csv.DictReader(file))
    before = metrics.stat().st_mtime - begin - float(rows[-1]["wall_seconds"])
    return [
        (float(row["env_steps"]), before + float(row["wall_seconds"]), float(row["return_100"] or "nan"))
        for row in rows
    ]


def _watch_memory(process: subprocess.Popen, found: list[int]) -> None:
    """Proportional set sizes: pages that processes share are counted once."""
    parent = psutil.Process(process.pid)
    while process.poll() is None:
        total = 0
        try:
            for each in (parent, *parent.children(recursive=True)):
                total += each.memory_full_info().pss
        except psutil.Error:  # one of them has just ended
            pass
        else:
            found.append(total)
        time.sleep(MEMORY_EVERY)
