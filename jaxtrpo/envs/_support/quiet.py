"""Suppresses output of third-party simulators that users cannot act on."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator


@contextlib.contextmanager
def no_output() -> Iterator[None]:
    """Suppresses Python's stdout: mujoco.mjx reports missing optional packages on import, Warp the devices it finds."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
