"""`jaxtrpo launch`: several processes of one training on this machine."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from typing import Annotated

from tyro.conf import Positional, arg

from jaxtrpo.cli.command import FAILED, INPUT_ERROR, INTERRUPTED, Work
from jaxtrpo.config.checks import require_whole
from jaxtrpo.parallel.machine import ADDRESS, COUNT, INDEX, LAUNCHER, PROCESSES_PER_CORE, available_cores
from jaxtrpo.runs.own_command import own_command

GRACE_SECONDS = 25.0  # within which JAX ends the other processes when one has ended
EXPLAINED = INPUT_ERROR, INTERRUPTED, 128 + signal.SIGTERM  # exit codes of processes that have reported why


@dataclasses.dataclass(frozen=True)
class Launch:
    """Start several processes on this machine that train jointly: jaxtrpo launch --processes 2 -- train ..."""

    command: Positional[Annotated[tuple[str, ...], arg(metavar="-- train ...")]]
    """`train` and its arguments, which are the same for all processes"""
    processes: int = 2
    """number of processes, among which the cores are divided"""

    def prepare(self) -> Work:
        """See `Command.prepare`."""
        require_whole(1, PROCESSES_PER_CORE * available_cores(), processes=self.processes)
        if self.command[:1] != ("train",):
            given = f", not `{self.command[0]}`" if self.command else ""
            raise ValueError(f"launch: expected `-- train ...`{given}")
        return self._work

    def _work(self) -> int:
        started: list[subprocess.Popen] = []
        for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(kind, lambda number, frame: [each.send_signal(number) for each in started])
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
        with ThreadPoolExecutor(self.processes) as pool:
            try:
                for number in range(self.processes):
                    started.append(self._start(number, address))
                return self._exit_code({pool.submit(each.wait): number for number, each in enumerate(started)})
            finally:
                for each in started:
                    each.kill()

    def _start(self, number: int, address: str) -> subprocess.Popen:
        variables = {ADDRESS: address, COUNT: str(self.processes), INDEX: str(number)}
        variables["JAX_COORDINATOR_BIND_ADDRESS"] = address  # not on all interfaces
        variables[LAUNCHER] = str(os.getpid())
        # In a group of its own: what the terminal sends comes once, by way of this process.
        process = subprocess.Popen((*own_command(), *self.command), env={**os.environ, **variables}, process_group=0)
        if hasattr(os, "sched_setaffinity"):
            cores = sorted(os.sched_getaffinity(0))
            each = len(cores) // self.processes  # if there are too few, several processes share one
            os.sched_setaffinity(process.pid, cores[number * each :][:each] or [cores[number % len(cores)]])
        return process

    def _exit_code(self, ends: dict) -> int:
        """Waits for all processes; returns the exit code of the first that failed."""
        failed = next((end for end in as_completed(ends) if end.result() != 0), None)
        if failed is None:
            return 0
        number, code = ends[failed], failed.result()
        if late := wait(ends, GRACE_SECONDS).not_done:
            self._say(min(ends[end] for end in late), "did not end with the others and was killed")
        elif code not in EXPLAINED:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            self._say(number, how)
        return code if code > 0 else FAILED

    def _say(self, number: int, how: str) -> None:
        arguments = [part for argument in self.command for part in argument.split("=", 1)]
        out = arguments[arguments.index("--out") + 1] if "--out" in arguments[:-1] else None
        then = f"--resume resumes from the last checkpoint in {out}" if out else "nothing was saved without --out"
        print(f"jaxtrpo: error: process {number} of {self.processes} {how}; {then}", file=sys.stderr)
