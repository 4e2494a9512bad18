"""Cores and memory of this machine, and the variables that launchers set; without JAX, so the command starts fast."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

# Environment variables that a launcher sets.
ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
LAUNCHER = "JAXTRPO_LAUNCHER"  # id of the process that is `jaxtrpo launch`
PROCESSES_PER_CORE = 8  # more would only take each other's time
LOOKS_EVERY = 1.0  # seconds between two looks at whether it still lives
# Files in which Linux says what a container may have: bytes of memory, and microseconds of cores' time in a period.
_LIMITS = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"
_QUOTAS = ("/sys/fs/cgroup/cpu.max",), ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def end_with_launcher() -> None:
    """Terminates this process, as SIGTERM does, when the launcher that started it has ended, however it did."""
    launcher = os.environ.get(LAUNCHER)
    if launcher is None or str(os.getppid()) != launcher:  # the variable is inherited
        return

    def watch() -> None:
        while str(os.getppid()) == launcher:
            time.sleep(LOOKS_EVERY)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def available_cores() -> int:
    """Returns the number of CPU cores that this process may use, within the CPU quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, *map(_quota, _QUOTAS)))


def memory() -> float:
    """Returns the bytes of memory, used or free, of the machine or container; infinite if the system does not say."""
    try:
        found = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        found = float("inf")
    return min(found, *map(_limit, _LIMITS))


def _quota(paths: tuple[str, ...]) -> int:
    """Returns the cores that a quota of time is worth, rounded up."""
    try:
        quota, period = (int(number) for path in paths for number in Path(path).read_text().split())
    except (ValueError, OSError):  # "max", or no such file
        return sys.maxsize
    return -(-quota // period) if quota > 0 < period else sys.maxsize  # -1 is none


def _limit(path: str) -> float:
    try:
        return float(Path(path).read_text())
    except (ValueError, OSError):  # "max", or no such file
        return float("inf")
