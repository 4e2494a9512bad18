"""Training commands of any library, watched from outside: the clock, the returns, and the memory."""

from __future__ import annotations

import csv
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

MEMORY_EVERY = 1.0  # seconds; less often where that would take more than a twentieth of a core


class Watched(NamedTuple):
    """What one training showed. Points are ends of updates."""

    env_steps: np.ndarray
    seconds: np.ndarray  # since the command was given
    returns: np.ndarray  # mean of the last 100 episodes; NaN before the first
    memory_seconds: np.ndarray  # when memory was read, since the command was given
    memory: np.ndarray  # bytes of the process and its children

    @property
    def steps_per_second(self) -> float:
        """Environment steps, from the end of the first update to the end of the last."""
        return float((self.env_steps[-1] - self.env_steps[0]) / (self.seconds[-1] - self.seconds[0]))


def watch(
    command: Sequence[str], *, metrics: Path | None = None, environment: Mapping[str, str] | None = None
) -> Watched:
    """Runs a command to its end.

    Args:
      command: either prints "update STEPS RETURN" after each update, or writes `metrics`.
      metrics: metrics.csv of a jaxtrpo run.
      environment: of the command; this process's if not given.

    Raises:
      CalledProcessError: the command failed.
    """
    begin, begin_of_day = time.perf_counter(), time.time()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    memory: list[tuple[float, int]] = []
    watcher = threading.Thread(target=_watch_memory, args=(process, begin, memory))
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
    memory_seconds, held = np.array(memory).T
    return Watched(*np.array(points).T, memory_seconds, held)


def _points_of(metrics: Path, begin: float) -> list[tuple[float, float, float]]:
    """Rows of a metrics.csv; its own clock starts when the command has read its settings, `begin` when it was given."""
    with metrics.open() as file:
        rows = list(csv.DictReader(file))
    before = metrics.stat().st_mtime - begin - float(rows[-1]["wall_seconds"])
    return [
        (float(row["env_steps"]), before + float(row["wall_seconds"]), float(row["return_100"] or "nan"))
        for row in rows
    ]


def _watch_memory(process: subprocess.Popen, begin: float, found: list[tuple[float, int]]) -> None:
    """What each process has for itself, and once what processes share: as much as the one that shares most."""
    parent = psutil.Process(process.pid)
    while process.poll() is None:
        now = time.perf_counter()
        try:
            each = [one.memory_full_info() for one in (parent, *parent.children(recursive=True))]
        except psutil.Error:  # one of them has just ended
            pass
        else:
            found.append((now - begin, sum(one.uss for one in each) + max(one.rss - one.uss for one in each)))
        time.sleep(max(MEMORY_EVERY, 20 * (time.perf_counter() - now)))
