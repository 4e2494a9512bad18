"""What results were made with, in words."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib.metadata import version

import jax
import mujoco

from jaxtrpo.parallel.machine import available_cores


def machine() -> str:
    """Cores, processor kind, and versions."""
    return (
        f"{available_cores()} cores ({platform.machine()}), Python {platform.python_version()}, JAX {jax.__version__}, "
        f"MuJoCo {mujoco.__version__}"
    )


def versions(packages: Iterable[str]) -> str:
    """Of what ours is compared with."""
    return ", ".join(f"{name} {version(name)}" for name in packages)
