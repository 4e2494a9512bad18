"""Main function of a worker process, which steps some of the environments; `workers` is the parent's side.

The process does not import JAX. It ends with its parent, even in the middle of a step.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
from typing import Any

from jaxtrpo.envs.gymnasium.steppers import make_stepper

MESSAGE = struct.Struct("=cII")  # command, first environment, end of environments
RESET, STEP = b"r", b"s"
SET = b"a"  # is followed by pickled attributes, whose length takes the place of the first environment
DOING = {RESET: "starting", STEP: "stepping", SET: "setting attributes"}
DONE, FAILED = b"k", b"e"  # FAILED is followed by the length of an error message and the message
LENGTH = struct.Struct("=Q")
GRACE = 1.0  # seconds that a worker has to close its environments after its parent has ended


def main() -> None:
    """Serves requests from the socket with the descriptor `sys.argv[1]` until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts
    connection = socket.socket(fileno=int(sys.argv[1]))
    size = LENGTH.unpack(_read(LENGTH.size))[0]
    payload = _read(size)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    name = "worker process"
    try:
        config = pickle.loads(payload)
        name = config.source.name
        stepper = _make_stepper(config, int(sys.argv[2]))
    except BaseException as error:
        _send_failure(connection, name, "starting", error)
        return
    try:
        if _send(connection, DONE):
            _serve(connection, name, *stepper)
    finally:
        stepper[0].close()


def _make_stepper(config: Any, memory: int) -> tuple[Any, Any]:
    """Returns a stepper, and the seeds of its environments, which are only written before a reset."""
    rows = config.sizes.on(mmap.mmap(memory, config.sizes.nbytes()))
    os.close(memory)
    return make_stepper(config, rows), rows.seed[config.edges[0] : config.edges[-1]]


def _serve(connection: socket.socket, name: str, stepper: Any, seeds: Any) -> None:
    while message := _receive(connection):
        command, start, stop = MESSAGE.unpack(message)
        try:
            if command == STEP:
                stepper.step(start, stop)
            elif command == RESET:
                _seed_global_generators(int(seeds[0]))
                stepper.reset()
            else:
                stepper.set_attributes(_read_attributes(connection, start))
        except (Exception, SystemExit) as error:
            _send_failure(connection, name, DOING[command], error)
            return
        if not _send(connection, DONE):
            return


def _seed_global_generators(seed: int) -> None:
    """Seeds the generators that simulators share if they do not use their own."""
    import random

    import numpy as np

    random.seed(seed)
    np.random.seed(seed)


def _read_attributes(connection: socket.socket, size: int) -> Any:
    data = b""
    while len(data) < size:
        more = os.read(connection.fileno(), size - len(data))
        if not more:
            os._exit(1)
        data += more
    return pickle.loads(data)


def _receive(connection: socket.socket) -> bytes:
    """Returns the next message; empty if the parent has closed the connection or was killed."""
    try:
        return os.read(connection.fileno(), MESSAGE.size)
    except ConnectionError:
        return b""


def _send(connection: socket.socket, data: bytes) -> bool:
    """Sends data; returns False if the parent has closed the connection."""
    try:
        connection.sendall(data)
    except ConnectionError:
        return False
    return True


def _send_failure(connection: socket.socket, name: str, doing: str, error: BaseException) -> None:
    from jaxtrpo.envs.gymnasium.errors import SimulatorError, simulator_error

    text = str(error if isinstance(error, SimulatorError) else simulator_error(name, doing, error))
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
