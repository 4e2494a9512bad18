"""Worker processes that step environments, from the parent's side."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import signal
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import cloudpickle

from jaxtrpo.envs.gymnasium.errors import SimulatorError
from jaxtrpo.envs.gymnasium.other_python import NamedSource, command_of
from jaxtrpo.envs.gymnasium.shared_arrays import Rows, RowSizes
from jaxtrpo.envs.gymnasium.steppers import StepperConfig
from jaxtrpo.envs.gymnasium.worker import DONE, LENGTH, MESSAGE, RESET, SET, STEP

SECONDS_TO_START = 120.0  # minimum timeout for the start, because simulators may import large packages
SECONDS_TO_CLOSE = 3.0
WORKER = "jaxtrpo.envs.gymnasium.worker"


@contextlib.contextmanager
def shared_memory(size: int) -> Iterator[tuple[int, mmap.mmap]]:
    """Yields the descriptor of anonymous shared memory, closed on exit, and its mapping, which stays valid."""
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
    """Steps environments in worker processes (see `steppers.Stepper`).

    Args:
      configs: stepper of each process; together they cover all environments, in order.
      sizes: sizes of the rows.
      timeout: seconds that a process may take for a reset or a step.

    Raises:
      SimulatorError: in every method, if a simulator fails or times out, or its process ends.
    """

    def __init__(self, configs: list[StepperConfig], sizes: RowSizes, timeout: float):
        self.workers: list[_Worker] = []
        with shared_memory(sizes.nbytes()) as (descriptor, memory):
            self.rows: Rows = sizes.on(memory)
            try:
                for number, config in enumerate(configs):
                    self.workers.append(_Worker(config, f"worker process {number + 1} of {len(configs)}", descriptor))
                    self.workers[-1].set_timeout(max(timeout, SECONDS_TO_START))
                for worker, config in zip(self.workers, configs, strict=True):
                    worker.send_config(config)
                for worker in self.workers:
                    worker.wait("to start")
            except BaseException:
                self.kill()
                raise
        for worker in self.workers:
            worker.set_timeout(timeout)

    def reset(self) -> None:
        """Starts the first episodes, with the seeds in the rows."""
        for worker in self.workers:
            worker.send(RESET, worker.start, worker.stop)
        for worker in self.workers:
            worker.wait("for a reset")

    def step(self, start: int, stop: int) -> None:
        """Steps the environments `start` to `stop - 1`, with automatic resets."""
        involved = [worker for worker in self.workers if worker.start < stop and worker.stop > start]
        # A worker with environments of two actors serves them one after the other. Locks are taken in a fixed order.
        with contextlib.ExitStack() as held:
            for worker in involved:
                held.enter_context(worker.lock)
                worker.send(STEP, max(start, worker.start), min(stop, worker.stop))
            for worker in involved:
                worker.wait("for a step")

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Sets attributes of every simulator."""
        payload = cloudpickle.dumps(dict(attributes))
        for worker in self.workers:
            with worker.lock:
                worker.send(SET, len(payload), 0, payload)
                worker.wait("to set attributes")

    def close(self) -> None:
        """Lets the processes close their environments and exit."""
        for worker in self.workers:
            worker.disconnect()
        for worker in self.workers:
            worker.end(SECONDS_TO_CLOSE)

    def kill(self) -> None:
        """Kills the processes, even while other threads wait for them."""
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.end(SECONDS_TO_CLOSE)


class _Worker:
    """A worker process and the socket that connects to it."""

    def __init__(self, config: StepperConfig, name: str, memory: int):
        self.name, self.start, self.stop = f"{config.source.name}: {name}", config.edges[0], config.edges[-1]
        self.lock = threading.Lock()
        self.connection, theirs = socket.socketpair()
        with theirs:
            python = config.source.python if isinstance(config.source, NamedSource) else None
            command = [*command_of(python, WORKER), str(theirs.fileno()), str(memory)]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, pass_fds=[theirs.fileno(), memory], bufsize=0
            )
        self._timeout = math.inf

    def send_config(self, config: StepperConfig) -> None:
        """Sends the process the configuration of its stepper."""
        payload = cloudpickle.dumps(config)
        pipe = self.process.stdin
        assert pipe is not None
        try:
            for data in (LENGTH.pack(len(payload)), payload):
                view = memoryview(data)
                while view:
                    view = view[pipe.write(view) :]
        except BrokenPipeError:
            raise self._ended() from None

    def set_timeout(self, seconds: float) -> None:
        """Sets the timeout of `wait`, in the kernel, which saves a system call per step."""
        whole, self._timeout = int(seconds), seconds
        interval = struct.pack("@ll", whole, max(int((seconds - whole) * 1e6), 0 if whole else 1))
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)

    def send(self, command: bytes, start: int, stop: int, payload: bytes = b"") -> None:
        try:
            self.connection.sendall(MESSAGE.pack(command, start, stop) + payload)
        except OSError:
            raise self._ended() from None

    def wait(self, what: str) -> None:
        """Waits for the process to finish its command; `what` completes the error message of a timeout."""
        try:
            answer = self.connection.recv(1)
        except BlockingIOError:
            self.process.kill()
            raise SimulatorError(
                f"{self.name} took longer than {self._timeout:g} seconds {what}; increase the timeout with "
                f"jaxtrpo.make_env(..., timeout={2 * self._timeout:g})"
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

    def disconnect(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def end(self, seconds: float) -> None:
        """Waits for the process to exit and kills it after a timeout."""
        self.disconnect()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        if self.lock.acquire(timeout=SECONDS_TO_CLOSE):  # no other thread reads from it
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
