"""Which OpenGL draws MuJoCo's pictures, without a screen."""

from __future__ import annotations

import os
import subprocess
import sys

VARIABLE = "MUJOCO_GL"
WITHOUT_SCREEN = ("egl", "osmesa")
# A context is made in a process of its own: some drivers end theirs, and OpenGL cannot be changed once it is loaded.
TRIAL = "import mujoco; mujoco.GLContext(16, 16).make_current()"
SECONDS = 60


def choose_opengl() -> str:
    """Sets MUJOCO_GL, which MuJoCo reads when it is imported, to what works here, unless it is set.

    Returns:
      What was chosen.

    Raises:
      OSError: nothing works; one sentence that names the packages to install.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return chosen
    for name in WITHOUT_SCREEN:
        if _works(name):
            os.environ[VARIABLE] = name
            return name
    raise OSError(
        "MuJoCo cannot draw here: neither EGL nor OSMesa works; install one (Debian, Ubuntu: apt-get install libegl1 "
        f"libgl1, or libosmesa6), or set {VARIABLE}"
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
