"""A process that steps some of the environments; see `workers` for the other end.

It imports no JAX. It ends when the process that started it does, even in the middle of a step.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import struct
import sys
import threading
import time
from typing import Any

from jaxtrpo.envs.gymnasium.steppers import make_stepper

MESSAGE = struct.Struct("=cII")  # command, first environment, environment after the last
RESET, STEP = b"r", b"s"
DONE, FAILED = b"k", b"e"  # a failure is followed by the length of its text and the text
LENGTH = struct.Struct("=Q")
GRACE = 1.0  # seconds that a worker whose parent is gone has to close its environments


def main() -> None:
    """Runs until the socket of which the number is the first argument is closed, however that comes about."""
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
    try:
        if _send(connection, DONE):
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
    while message := _receive(connection):
        command, start, stop = MESSAGE.unpack(message)
        try:
            if command == STEP:
                simulators.step(start, stop)
            else:
                simulators.reset()
        except Exception as error:
            _send_failure(connection, error)
            return
        if not _send(connection, DONE):
            return


def _receive(connection: socket.socket) -> bytes:
    """The next message; nothing where the parent has hung up, or was killed."""
    try:
        return os.read(connection.fileno(), MESSAGE.size)
    except ConnectionError:
        return b""


def _send(connection: socket.socket, data: bytes) -> bool:
    """Whether there still is somebody who waits for it."""
    try:
        connection.sendall(data)
    except ConnectionError:
        return False
    return True


def _send_failure(connection: socket.socket, error: BaseException) -> None:
    import traceback

    from jaxtrpo.envs.gymnasium.errors import SimulatorError

    text = str(error) if isinstance(error, SimulatorError) else "".join(traceback.format_exception(error))
    data = text.encode(errors="replace")
    _send(connection, FAILED + LENGTH.pack(len(data)) + data)


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
