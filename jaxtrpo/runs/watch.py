"""The report of runs while they train, served to this machine alone."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from jaxtrpo.runs.figures import PARTS, columns_of, seconds_of
from jaxtrpo.runs.read import read_run
from jaxtrpo.runs.report import cells, page_of, summary

HERE = "127.0.0.1"


def serve(directories: Sequence[Path], port: int) -> ThreadingHTTPServer:
    """A server that is ready; `serve_forever` answers requests.

    Args:
      directories: of runs, whose files are read anew for every answer.
      port: 0 takes one that is free.

    Raises:
      OSError: the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers = {"/": _page, "/data": _data}
            make = answers.get(self.path.partition("?")[0])
            # A page elsewhere that knows the port must not read what is here under a name of its own.
            if self.headers.get("Host", "").partition(":")[0] not in (HERE, "localhost") or make is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            try:
                kind, content = make(directories)
            except (OSError, ValueError) as error:  # of a run that was removed, or is being replaced
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, " ".join(str(error).split())[:200])
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the terminal shows the address and nothing else."""

    return ThreadingHTTPServer((HERE, port), Handler)


def _page(directories: Sequence[Path]) -> tuple[str, bytes]:
    return "text/html; charset=utf-8", page_of([read_run(place) for place in directories], live=True).encode()


def _data(directories: Sequence[Path]) -> tuple[str, bytes]:
    runs = [read_run(place) for place in directories]
    seconds = zip(*map(seconds_of, runs), strict=True)
    content = {
        "runs": [
            {
                "columns": {name: [_number(value) for value in values] for name, values in columns_of(run).items()},
                "cells": cells(summary(run, number)),
            }
            for number, run in enumerate(runs)
        ],
        "time": {
            "run": [str(number + 1) for number in range(len(runs))],
            **dict(zip(PARTS, map(list, seconds), strict=True)),
        },
    }
    return "application/json", json.dumps(content).encode()


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
