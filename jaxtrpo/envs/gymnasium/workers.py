"""Processes that step environments: starting them, asking them for steps, ending them."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator

import cloudpickle

from jaxtrpo.envs.gymnasium.errors import SimulatorError
from jaxtrpo.envs.gymnasium.shared_arrays import Rows, RowSizes
from jaxtrpo.envs.gymnasium.steppers import Task
from jaxtrpo.envs.gymnasium.worker import DONE, LENGTH, MESSAGE, RESET, STEP

SECONDS_TO_START = 120.0  # at least: a simulator may have a lot to import
SECONDS_TO_CLOSE = 3.0
_START = "import sys; sys.path[:] = {path!r}; from jaxtrpo.envs.gymnasium.worker import main; main()"


@contextlib.contextmanager
def shared_memory(size: int) -> Iterator[tuple[int, mmap.mmap]]:
    """A descriptor of anonymous memory, closed in the end, and its mapping, which stays."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("jaxtrpo")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size)
        yield descriptor, mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


class Workers:
    """Steps environments in processes; otherwise like `singles.Singles`.

    Args:
      tasks: of each process; together they have all environments, in order.
      sizes: of the rows.
      timeout: seconds that a process may take for a reset or a step.

    Raises:
      SimulatorError: from every method, where a simulator fails, its process ends, or it takes too long.
    """

    def __init__(self, tasks: list[Task], sizes: RowSizes, timeout: float):
        self.workers: list[_Worker] = []
        with shared_memory(sizes.nbytes()) as (descriptor, memory):
            self.rows: Rows = sizes.on(memory)
            try:
                for number, task in enumerate(tasks):
                    self.workers.append(_Worker(task, f"worker process {number + 1} of {len(tasks)}", descriptor))
                    self.workers[-1].limit(max(timeout, SECONDS_TO_START))
                for worker, task in zip(self.workers, tasks, strict=True):
                    worker.hand_over(task)
                for worker in self.workers:
                    worker.wait("to start")
            except BaseException:
                self.kill()
                raise
        for worker in self.workers:
            worker.limit(timeout)

    def reset(self) -> None:
        """Starts the first episodes, with the seeds in the rows."""
        for worker in self.workers:
            worker.send(RESET, worker.start, worker.stop)
        for worker in self.workers:
            worker.wait("for a reset")

    def step(self, start: int, stop: int) -> None:
        """One step of environments `start` to `stop - 1`, with automatic resets."""
        asked = [worker for worker in self.workers if worker.start < stop and worker.stop > start]
        # A worker that has environments of two actors serves one after the other. All take locks in the same order.
        with contextlib.ExitStack() as held:
            for worker in asked:
                held.enter_context(worker.lock)
                worker.send(STEP, max(start, worker.start), min(stop, worker.stop))
            for worker in asked:
                worker.wait("for a step")

    def close(self) -> None:
        """Lets the processes close their environments and end."""
        for worker in self.workers:
            worker.hang_up()
        for worker in self.workers:
            worker.end(SECONDS_TO_CLOSE)

    def kill(self) -> None:
        """Ends the processes at once, also while others wait for them."""
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.end(SECONDS_TO_CLOSE)


class _Worker:
    """One process, and the socket through which it is told what to do."""

    def __init__(self, task: Task, name: str, memory: int):
        self.name, self.start, self.stop = f"{task.source.name}: {name}", task.edges[0], task.edges[-1]
        self.lock = threading.Lock()
        self.connection, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-c", _START.format(path=sys.path), str(theirs.fileno()), str(memory)]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, pass_fds=[theirs.fileno(), memory], bufsize=0
            )
        self._seconds = math.inf

    def hand_over(self, task: Task) -> None:
        """Tells the process what to make."""
        payload = cloudpickle.dumps(task)
        pipe = self.process.stdin
        assert pipe is not None
        try:
            for data in (LENGTH.pack(len(payload)), payload):
                view = memoryview(data)
                while view:
                    view = view[pipe.write(view) :]
        except BrokenPipeError:
            raise self._ended() from None

    def limit(self, seconds: float) -> None:
        """How long `wait` waits from now on. Kept by the kernel: that is one system call less for every step."""
        whole, self._seconds = int(seconds), seconds
        interval = struct.pack("@ll", whole, max(int((seconds - whole) * 1e6), 0 if whole else 1))
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)

    def send(self, command: bytes, start: int, stop: int) -> None:
        try:
            self.connection.send(MESSAGE.pack(command, start, stop))
        except OSError:
            raise self._ended() from None

    def wait(self, what: str) -> None:
        """Returns when the process has done what it was told."""
        try:
            answer = self.connection.recv(1)
        except BlockingIOError:
            self.process.kill()
            raise SimulatorError(
                f"{self.name} took longer than {self._seconds:g} seconds {what}; jaxtrpo.make_env(..., "
                f"timeout={2 * self._seconds:g}) waits longer"
            ) from None
        except OSError:
            raise self._ended() from None
        if answer == DONE:
            return
        text = b""
        try:
            if answer:
                (size,) = LENGTH.unpack(self._read(LENGTH.size))
                text = self._read(size)
        except OSError:
            raise self._ended() from None
        raise SimulatorError(text.decode(errors="replace")) if text else self._ended()

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def end(self, seconds: float) -> None:
        """Waits for the process to end, and makes it if that takes too long."""
        self.hang_up()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        if self.lock.acquire(timeout=SECONDS_TO_CLOSE):  # nobody reads from it any more
            self.connection.close()
            self.lock.release()

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.connection.recv(size - len(data))
            if not more:
                raise ConnectionError
            data += more
        return data

    def _ended(self) -> SimulatorError:
        try:
            status = self.process.wait(SECONDS_TO_CLOSE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        if status >= 0:
            return SimulatorError(f"{self.name} ended with exit status {status}")
        try:
            signal_name = signal.Signals(-status).name
        except ValueError:
            signal_name = "unknown"
        return SimulatorError(f"{self.name} was ended by signal {-status} ({signal_name})")
