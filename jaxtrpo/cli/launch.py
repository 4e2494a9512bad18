"""`jaxtrpo launch`: several processes of one training on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Annotated

from tyro.conf import Positional, arg

from jaxtrpo.cli.command import FAILED, Work
from jaxtrpo.config.checks import require_whole
from jaxtrpo.parallel.connections import LOOPBACK, free_port
from jaxtrpo.parallel.group import ADDRESS, COUNT, INDEX

GRACE_SECONDS = 90.0  # in which processes end by themselves when one of them has


@dataclasses.dataclass(frozen=True)
class Launch:
    """Start several processes on this machine that train together: jaxtrpo launch --processes 2 -- train ..."""

    words: Positional[Annotated[tuple[str, ...], arg(metavar="-- train ...")]]
    """what each of them is to do; `train`, with the same words for all"""
    processes: int = 2
    """how many; the cores are dealt out to them"""

    def prepare(self) -> Work:
        """As for `Train`."""
        require_whole(1, processes=self.processes)
        if self.words[:1] != ("train",):
            raise ValueError(f"launch: {' '.join(self.words[:1]) or 'nothing'} is no `train ...` after --")
        return self._work

    def _work(self) -> int:
        address = f"{LOOPBACK}:{free_port(LOOPBACK)}"
        started: list[subprocess.Popen] = []
        with _passing_on_termination(started):
            for number in range(self.processes):
                started.append(self._start(number, address))
            return _exit_code(started)

    def _start(self, number: int, address: str) -> subprocess.Popen:
        environment = {**os.environ, ADDRESS: address, COUNT: str(self.processes), INDEX: str(number)}
        with _on_cores(_share(number, self.processes)):
            return subprocess.Popen([sys.executable, "-m", "jaxtrpo", *self.words], env=environment)


@contextlib.contextmanager
def _on_cores(cores: set[int]) -> Iterator[None]:
    """While it lasts, processes that are started get these cores, if any are said."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # is inherited
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _share(number: int, count: int) -> set[int]:
    """The cores of one process; several share one if there are too few. Nothing where the system cannot say."""
    if not hasattr(os, "sched_getaffinity"):
        return set()
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // count
    return set(cores[number * each : (number + 1) * each]) if each else {cores[number % len(cores)]}


@contextlib.contextmanager
def _passing_on_termination(started: Sequence[subprocess.Popen]) -> Iterator[None]:
    """While it lasts, SIGTERM goes to all of them; an interrupt of the terminal does anyway."""

    def pass_on(number: int, frame: object) -> None:
        for process in started:
            process.send_signal(number)

    before = {kind: signal.signal(kind, handler) for kind, handler in
              ((signal.SIGTERM, pass_on), (signal.SIGINT, lambda number, frame: None))}  # fmt: skip
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
        for process in started:
            process.kill()


def _exit_code(started: Sequence[subprocess.Popen]) -> int:
    """Of the first that did not end well; the others have some time to notice."""
    end = None
    while any(process.poll() is None for process in started):
        if end is None and any(process.returncode for process in started):
            end = time.monotonic() + GRACE_SECONDS
        if end is not None and time.monotonic() > end:
            break
        time.sleep(0.05)
    failed = [(number, process.poll()) for number, process in enumerate(started) if process.poll() != 0]
    if not failed:
        return 0
    for number, code in failed:
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            print(f"jaxtrpo: error: process {number} of {len(started)} was ended by {name}", file=sys.stderr)
    code = failed[0][1]
    return FAILED if code is None or code < 0 else code
