"""A process that steps some of the environments; see `workers` for the other end.

It imports no JAX. It ends when the process that started it does, even in the middle of a step.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import struct
import sys
import threading
import time
from typing import Any

from jaxtrpo.envs.gymnasium.stepper import make_stepper

MESSAGE = struct.Struct("=cII")  # command, first environment, environment after the last
RESET, STEP = b"r", b"s"
DONE, FAILED = b"k", b"e"  # a failure is followed by the length of its text and the text
LENGTH = struct.Struct("=Q")
GRACE = 1.0  # seconds that a worker whose parent is gone has to close its environments


def main() -> None:
    """Runs until the socket of which the number is the first argument is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent
    connection = socket.socket(fileno=int(sys.argv[1]))
    size = LENGTH.unpack(_read(LENGTH.size))[0]
    payload = _read(size)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        simulators = _make(payload, int(sys.argv[2]))
    except BaseException as error:
        _send_failure(connection, error)
        return
    connection.sendall(DONE)
    try:
        _serve(connection, simulators)
    finally:
        simulators.close()


def _make(payload: bytes, memory: int) -> Any:
    import cloudpickle

    task = cloudpickle.loads(payload)
    rows = task.sizes.on(mmap.mmap(memory, task.sizes.nbytes()))
    os.close(memory)
    return make_stepper(task, rows)


def _serve(connection: socket.socket, simulators: Any) -> None:
    descriptor = connection.fileno()
    while message := os.read(descriptor, MESSAGE.size):
        command, start, stop = MESSAGE.unpack(message)
        try:
            if command == STEP:
                simulators.step(start, stop)
            else:
                simulators.reset()
        except Exception as error:
            _send_failure(connection, error)
            return
        with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
            os.write(descriptor, DONE)


def _send_failure(connection: socket.socket, error: BaseException) -> None:
    import traceback

    from jaxtrpo.envs.gymnasium.errors import SimulatorError

    text = str(error) if isinstance(error, SimulatorError) else "".join(traceback.format_exception(error))
    data = text.encode(errors="replace")
    connection.sendall(FAILED + LENGTH.pack(len(data)) + data)


def _read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(0, size - len(data))
        if not more:
            os._exit(1)
        data += more
    return data


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    time.sleep(GRACE)
    os._exit(1)


if __name__ == "__main__":
    main()
