"""Training commands of any library, watched from outside: the clock, the returns, and the memory."""

from __future__ import annotations

import csv
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

Enough = Callable[[float, float], bool]
METRICS_EVERY = 1.0  # seconds
MEMORY_EVERY = 1.0  # seconds; less often where that would take more than a twentieth of a core


class Watched(NamedTuple):
    """What one training showed. Points are ends of updates."""

    env_steps: np.ndarray
    seconds: np.ndarray  # since the command was given
    returns: np.ndarray  # mean of the last 100 episodes; NaN before the first
    memory_seconds: np.ndarray  # when memory was read, since the command was given
    memory: np.ndarray  # bytes of the process and its children
    evaluations: np.ndarray  # environment steps, seconds since the command, return of the deterministic policy; by row

    @property
    def steps_per_second(self) -> float:
        """Environment steps, from the end of the first update to the end of the last."""
        return float((self.env_steps[-1] - self.env_steps[0]) / (self.seconds[-1] - self.seconds[0]))


def watch(
    command: Sequence[str],
    *,
    metrics: Path | None = None,
    environment: Mapping[str, str] | None = None,
    enough: Enough | None = None,
) -> Watched:
    """Runs a command to its end, or until an evaluation is enough.

    Args:
      command: either prints "update STEPS RETURN" after each update, and "evaluation STEPS RETURN SECONDS" after those
        that it evaluates, with the seconds that all evaluations took, which do not count here; or writes `metrics`.
      metrics: metrics.csv of a jaxtrpo run.
      environment: of the command; this process's if not given.
      enough: (seconds, return) of an evaluation -> whether to end the command. Without it `metrics` are read at the end
        alone, so that what is measured has the machine to itself.

    Raises:
      CalledProcessError: the command failed.
    """
    begin, begin_of_day = time.perf_counter(), time.time()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    memory: list[tuple[float, int]] = []
    points, evaluations, ended = [], [], threading.Event()
    watchers = [threading.Thread(target=_watch_memory, args=(process, begin, memory))]
    if metrics is not None and enough is not None:
        watchers.append(threading.Thread(target=_end_when, args=(process, metrics, begin_of_day, enough, ended)))
    for watcher in watchers:
        watcher.start()
    assert process.stdout is not None
    for line in process.stdout:
        words = line.split()
        if words[:1] == ["update"]:
            points.append((float(words[1]), time.perf_counter() - begin, float(words[2])))
        elif words[:1] == ["evaluation"]:
            evaluated, seconds = float(words[2]), time.perf_counter() - begin - float(words[3])
            evaluations.append((float(words[1]), seconds, evaluated))
            if enough is not None and enough(seconds, evaluated):
                ended.set()
                process.terminate()
                break
    for watcher in watchers:
        watcher.join()
    if process.wait() and not ended.is_set():
        raise subprocess.CalledProcessError(process.returncode, command)
    if metrics is not None:
        points, evaluations = _points_of(metrics, begin_of_day, "return_100"), _evaluations_of(metrics, begin_of_day)
    memory_seconds, held = np.array(memory).T
    return Watched(*np.array(points).T, memory_seconds, held, np.array(evaluations).reshape(-1, 3))


def _points_of(metrics: Path, begin: float, name: str) -> list[tuple[float, float, float]]:
    """A column of a metrics.csv: its clock starts once settings are read, `begin` is when the command was given."""
    with metrics.open() as file:
        rows = list(csv.DictReader(file))
    if not rows:
        return []
    before = metrics.stat().st_mtime - begin - float(rows[-1]["wall_seconds"])
    return [(float(row["env_steps"]), before + float(row["wall_seconds"]), float(row[name] or "nan")) for row in rows]


def _evaluations_of(metrics: Path, begin: float) -> list[tuple[float, float, float]]:
    return [point for point in _points_of(metrics, begin, "eval_return") if np.isfinite(point[2])]


def _end_when(process: subprocess.Popen, metrics: Path, begin: float, enough: Enough, ended: threading.Event) -> None:
    """Ends a training at the first evaluation in `metrics` that is enough; `ended` is set then."""
    read = 0.0
    while process.poll() is None:
        time.sleep(METRICS_EVERY)
        if metrics.exists() and metrics.stat().st_mtime > read:
            read = metrics.stat().st_mtime
            if any(enough(seconds, value) for _, seconds, value in _evaluations_of(metrics, begin)):
                ended.set()
                process.terminate()
                return


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
