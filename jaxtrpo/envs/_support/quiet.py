"""What other people's simulators print, which their users can do nothing about."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator


@contextlib.contextmanager
def no_output() -> Iterator[None]:
    """Keeps Python's prints from the screen: mujoco.mjx tells which optional packages it misses, Warp which devices."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
