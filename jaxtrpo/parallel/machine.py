"""Cores and memory of this machine, and the variables that launchers set; without JAX, so the command starts fast."""

from __future__ import annotations

import os
from pathlib import Path

# Environment variables that a launcher sets.
ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
_LIMITS = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"  # of a container on Linux


def available_cores() -> int:
    """Returns the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> float:
    """Returns the bytes of memory, used or free, of the machine or container; infinite if the system does not say."""
    try:
        found = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        found = float("inf")
    return min(found, *map(_limit, _LIMITS))


def _limit(path: str) -> float:
    try:
        return float(Path(path).read_text())
    except (ValueError, OSError):  # "max", or no such file
        return float("inf")
