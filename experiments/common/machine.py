"""What results were made with, in words."""

from __future__ import annotations

import platform

import jax
import mujoco

from jaxtrpo.actors import available_cores


def machine() -> str:
    """Cores, processor kind, and versions."""
    return (
        f"{available_cores()} cores ({platform.machine()}), Python {platform.python_version()}, JAX {jax.__version__}, "
        f"MuJoCo {mujoco.__version__}"
    )
