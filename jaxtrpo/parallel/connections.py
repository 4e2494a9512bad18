"""Connections between processes: where one can be had, what goes over it, and one that does not seem to end."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
import time
from typing import Any

LOOPBACK = "127.0.0.1"
PORTS = range(10_000, 32_768)  # where Linux, macOS and Windows begin no connection of their own


def free_port(host: str = "") -> int:
    """Of this machine; none that systems give to outgoing connections, one of which might take it before it is used."""
    for _ in range(100):
        port = PORTS.start + secrets.randbelow(len(PORTS))
        with contextlib.suppress(OSError), socket.create_server((host, port)):
            return port
    raise ConnectionError(f"found no free port from {PORTS.start} to {PORTS.stop - 1}")


class Line:
    """A connection, and what is known of who is at its other end."""

    def __init__(self, connection: socket.socket):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection, self._lock, self._rest = connection, threading.Lock(), b""
        self.last_heard = self.behind_since = time.monotonic()
        self.turn, self.busy = 0, False

    def send(self, message: dict[str, Any]) -> None:
        """One line of JSON; from any thread."""
        with self._lock:
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """Ends it."""
        self._connection.close()

    def receive(self, timeout: float | None) -> dict[str, Any]:
        """The next message.

        Raises:
          OSError: there is none for `timeout` seconds, or the other end is closed.
          ValueError: it is none.
        """
        self._connection.settimeout(timeout)
        while b"\n" not in self._rest:
            more = self._connection.recv(65536)
            if not more:
                raise ConnectionError("the connection was closed")
            self._rest += more
        line, self._rest = self._rest.split(b"\n", 1)
        self.last_heard = time.monotonic()
        return json.loads(line)

    def hello(self) -> tuple[int, int]:
        """Index of the process at the other end, and of how many it is; errors as in `receive`."""
        said = self.receive(5.0)
        return int(said["index"]), int(said["count"])

    def heard(self, turn: int, busy: bool) -> None:
        """Takes in a sign of life."""
        if turn != self.turn:
            self.behind_since = time.monotonic()
        self.turn, self.busy = turn, busy


def relay(host: str, port: int) -> str:
    """An address, HOST:PORT, of this process that leads to another, and seems to do so for as long as it lives.

    JAX ends a process, with a stack trace and no sentence, as soon as its connection to the first process is closed.
    `group.Group` notices the same and says a sentence, but both at once are a race. So JAX connects to a thread of the
    process itself, which passes everything on and keeps its own end open whatever happens at the other.
    """
    server = socket.create_server((LOOPBACK, 0))
    threading.Thread(target=_serve, args=(server, (host, port)), daemon=True).start()
    return f"{LOOPBACK}:{server.getsockname()[1]}"


def _serve(server: socket.socket, address: tuple[str, int]) -> None:
    while True:
        near, _ = server.accept()
        try:
            far = socket.create_connection(address)
        except OSError:
            near.close()
            continue
        for source, sink in ((near, far), (far, near)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    # Nothing is closed: the other direction goes on, and who waits at the near end is not told.
    with contextlib.suppress(OSError):
        while some := source.recv(65536):
            sink.sendall(some)
