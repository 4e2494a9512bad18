"""Keeps compiled functions on disk, so that the next run starts sooner."""

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
    """Turns JAX's persistent compilation cache on, in the user's cache directory.

    Leaves everything alone if the user has configured a cache, or switched caching off. Goes on without if the
    directory cannot be written to. JAX releases that cannot store functions with host callbacks skip those.
    """
    options = cast(Any, jax.config)  # whose attributes are made at run time
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
    # Small programs too: compiling those of a start takes longer than reading them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # A file that a killed run left half written, or a full disk, costs a compilation and nothing else.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")


def processor() -> str:
    """Names the kind of CPU. Home directories are shared by machines, and code of one may crash another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        features = platform.processor()
    return hashlib.sha256(f"{platform.machine()} {features}".encode()).hexdigest()[:16]
