"""Choice of the OpenGL backend with which MuJoCo renders without a display."""

from __future__ import annotations

import os
import subprocess
import sys

VARIABLE = "MUJOCO_GL"
WITHOUT_SCREEN = ("egl", "osmesa")
# Tried in a separate process: some drivers kill it, and the backend cannot be changed once it is loaded.
TRIAL = "import mujoco; mujoco.GLContext(16, 16).make_current()"
SECONDS = 60


def choose_opengl() -> str:
    """Sets MUJOCO_GL, which MuJoCo reads when it is imported, to a backend that works, unless it is set already.

    Returns:
      The backend.

    Raises:
      OSError: no backend works; one sentence that names the packages to install.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return chosen
    for name in WITHOUT_SCREEN:
        if _works(name):
            os.environ[VARIABLE] = name
            return name
    raise OSError(
        "MuJoCo cannot render: neither EGL nor OSMesa works; install one (Debian, Ubuntu: apt-get install libegl1 "
        f"libgl1, or libosmesa6) or set {VARIABLE}"
    )


def _works(name: str) -> bool:
    environment = {**os.environ, VARIABLE: name}
    try:
        done = subprocess.run(
            [sys.executable, "-c", TRIAL], env=environment, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
