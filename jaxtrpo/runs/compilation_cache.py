"""JAX's persistent compilation cache, which makes later runs start faster."""

from __future__ import annotations

import hashlib
import os
import platform
import warnings
from pathlib import Path
from typing import Any, cast

import jax
from platformdirs import user_cache_path


def cache_compilations() -> None:
    """Enables JAX's persistent compilation cache in the user's cache directory.

    Does nothing if the user has configured a cache or disabled caching, or if the directory is not writable. JAX
    releases that cannot store functions with host callbacks skip those.
    """
    options = cast(Any, jax.config)  # its attributes are defined at run time
    if options.jax_compilation_cache_dir or not options.jax_enable_compilation_cache:
        return
    directory = user_cache_path("jaxtrpo") / "compiled" / processor()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if not os.access(directory, os.W_OK | os.X_OK):
        return
    jax.config.update("jax_compilation_cache_dir", str(directory))
    # Cache small programs too: a start compiles many, and reading them is faster.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # A truncated cache file of a killed run, or a full disk, only costs a compilation.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")


def processor() -> str:
    """Hash of the CPU's features: machines may share a home directory, and code for one CPU may crash on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        features = platform.processor()
    return hashlib.sha256(f"{platform.machine()} {features}".encode()).hexdigest()[:16]
