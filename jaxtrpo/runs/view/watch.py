"""A live report of runs in training, served on the loopback address."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from jaxtrpo.runs.reader import LoggedRun, read_run, runs_in
from jaxtrpo.runs.view.figures import PARTS, columns_of, columns_of_group, seconds_of
from jaxtrpo.runs.view.groups import groups_of
from jaxtrpo.runs.view.report import cells, page_of, summary

HERE = "127.0.0.1"
MOST_CONNECTIONS = 32
PATIENCE = 10.0  # seconds without a byte, after which a connection is closed
NO_RUN_YET = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="1">
<title>jaxtrpo watch</title><link rel="icon" href="data:,">
<style>:root { color-scheme: light dark } body { font: 16px system-ui; margin: 2rem }</style></head>
<body><p role="status">No run yet.</p></body></html>
"""


def serve(directories: Sequence[Path], port: int) -> ThreadingHTTPServer:
    """Returns a server that listens; `serve_forever` answers requests.

    Args:
      directories: directories that contain runs, or will; they are searched again for every request.
      port: port to listen on; 0 picks a free one.

    Raises:
      OSError: the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE

        def do_GET(self) -> None:
            answers = {"/": _page, "/data": _data}
            make = answers.get(self.path.partition("?")[0])
            # Reject other host names: with DNS rebinding, a foreign page could read the data.
            if self.headers.get("Host", "").partition(":")[0] not in (HERE, "localhost") or make is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            try:
                kind, content = make(directories)
            except (OSError, ValueError) as error:  # the run was removed or is being replaced
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, _in_ascii(error))
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Does nothing: the terminal shows only the address."""

    return _Server((HERE, port), Handler)


class _Server(ThreadingHTTPServer):
    """Limits how many connections are open: each is a thread and a file of a process that may be training."""

    daemon_threads = True

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of a tab that was closed or never asked."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def address(server: ThreadingHTTPServer) -> str:
    """Returns the URL of a server."""
    return f"http://{HERE}:{server.server_port}/"


@contextlib.contextmanager
def serving(directories: Sequence[Path]) -> Iterator[str]:
    """Serves in a background thread, as `serve` does; yields the URL."""
    with serve(directories, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield address(server)
        finally:
            server.shutdown()
            thread.join()


def _in_ascii(error: Exception) -> str:
    """Returns one line that a status line of HTTP can hold."""
    return " ".join(str(error).split()).encode("ascii", "backslashreplace").decode()[:200]


def _now(directories: Sequence[Path]) -> list[LoggedRun]:
    """Reads all runs, without those that were removed in the meantime or cannot be read."""
    runs = []
    for place in runs_in(directories):
        with contextlib.suppress(OSError, ValueError):
            runs.append(read_run(place))
    return runs


def _shape(runs: Sequence[LoggedRun]) -> str:
    """Identifies the runs and their columns with values; the page reloads when it changes."""
    known = [
        (str(run.path), *(name for name, values in run.columns.items() if np.isfinite(values).any())) for run in runs
    ]
    return json.dumps(known)


def _page(directories: Sequence[Path]) -> tuple[str, bytes]:
    runs = _now(directories)
    return "text/html; charset=utf-8", (page_of(runs, live=_shape(runs)) if runs else NO_RUN_YET).encode(
        errors="replace"
    )


def _data(directories: Sequence[Path]) -> tuple[str, bytes]:
    runs = _now(directories)
    seconds = zip(*map(seconds_of, runs), strict=True) if runs else [() for _ in PARTS]
    content = {
        "shape": _shape(runs),
        "runs": [
            {
                "columns": {name: [_number(value) for value in values] for name, values in columns_of(run).items()},
                "cells": cells(summary(run)),
            }
            for run in runs
        ],
        "groups": [
            None
            if len(group.numbers) < 2
            else {name: [_number(value) for value in values] for name, values in columns_of_group(runs, group).items()}
            for group in groups_of(runs)
        ],
        "time": {
            "run": [str(number + 1) for number in range(len(runs))],
            **dict(zip(PARTS, map(list, seconds), strict=True)),
        },
    }
    return "application/json", json.dumps(content).encode()


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
