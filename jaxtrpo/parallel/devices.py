"""Chooses the devices that are actors, and tells JAX how many to create before it starts."""

from __future__ import annotations

import functools
import itertools
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

import jax

from jaxtrpo.parallel.actors import Actors
from jaxtrpo.parallel.machine import available_cores, memory

JAX_CPU_DEVICES, DOUBLE_PRECISION = "jax_num_cpu_devices", "jax_enable_x64"
# Before version 0.11.2, jaxlib's LAPACK splits a batch over XLA's threads and waits for them on one of these: once all
# threads wait, the program hangs. A Brax program has some dozen places where a thread may wait.
LAPACK_FIXED, PROGRAM_THREADS = (0, 11, 2), 64


def choose_actors(
    num: int | None = None,
    *,
    device: str = "cpu",
    for_good: bool = False,
    program: bool = False,
    lapack: bool | None = None,
    processes: int | None = 1,
) -> Actors:
    """Chooses the devices that are actors, and starts JAX.

    JAX fixes the number of CPU devices when it starts. If it has not started yet, every core becomes a device.

    Args:
      num: number of devices over all processes; None for all devices.
      device: cpu, gpu, tpu, or auto: the accelerators for a program if there are any, else the CPU.
      for_good: whether this process will need no other devices, so that JAX creates no more than `num`; an unused
        device costs a thread that competes with the others.
      program: whether environments are JAX programs.
      lapack: whether they may solve equations by LAPACK; None: if they are JAX programs.
      processes: number of processes, each with the same number of actors; None if only known once JAX has started.

    Raises:
      ValueError: there are fewer devices than `num` or none of this kind, or JAX is in double precision.
    """
    if getattr(jax.config, DOUBLE_PRECISION):
        raise ValueError(
            f"{DOUBLE_PRECISION} is on, but jaxtrpo works in float32: unset {DOUBLE_PRECISION.upper()}, or call "
            f"jax.config.update({DOUBLE_PRECISION!r}, False)"
        )
    own = num and num // (processes or 1)
    already_started = not _make_devices(
        min(own, available_cores()) if own and for_good else available_cores(),
        lapack=program if lapack is None else lapack,
    )
    # JAX starts its threads here.
    with nullcontext() if processes == 1 else _without_preemption():
        platform = _platform(device, program=program)
        here = jax.local_devices(backend=platform)
    processes = processes or jax.process_count()
    if num is not None and num % processes:
        raise ValueError(f"actors={num} must be a multiple of the {processes} processes")
    own = num and num // processes
    if own is not None and own > len(here):
        how = _how_to_get_more(own) if platform == "cpu" else "an actor is one device"
        whose = "" if processes == 1 else " in each process"
        raise ValueError(f"actors={num}, but there are {len(here)} {platform.upper()} devices{whose}; {how}")
    chosen = getattr(jax.config, JAX_CPU_DEVICES) == len(here)  # the user set JAX_NUM_CPU_DEVICES
    if num is None and already_started and platform == "cpu" and not chosen and len(here) < available_cores():
        _warn_once(
            f"JAX was already started with {len(here)} CPU devices on {available_cores()} cores, so training uses "
            f"{len(here)}; {_how_to_get_more(available_cores())}"
        )
    if processes == 1:
        return Actors(tuple(here[:own]))
    everywhere = [
        [one for one in jax.devices(platform) if one.process_index == number][:own] for number in range(processes)
    ]
    return Actors(tuple(itertools.chain(*everywhere)))


@contextmanager
def _without_preemption() -> Iterator[None]:
    """Context in which new threads do not preempt running ones when they wake up, where the system supports it.

    A thread of gloo receives the data of other processes. If it wakes up and preempts the sending thread, which holds
    the lock that both need, it spins on the lock until its time slice ends; on a core that they share, a collective
    then takes 4 ms instead of 0.1 ms.
    """
    if not hasattr(os, "SCHED_BATCH") or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield
        return
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # inherited by new threads
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _platform(device: str, *, program: bool) -> str:
    """Returns JAX's name of the kind of device."""
    if device == "auto":
        return jax.default_backend() if program else "cpu"
    try:
        jax.local_devices(backend=device)
    except RuntimeError:
        raise ValueError(
            f"device={device}: JAX finds no such device, only {jax.default_backend()}; a GPU or TPU needs its own "
            "package of JAX, such as pip install 'jax[cuda13]'"
        ) from None
    return device


def memory_of(devices: Iterable[jax.Device]) -> float:  # pyright: ignore[reportInvalidTypeForm]
    """Returns the bytes that devices have for arrays; CPU devices have the machine's memory."""
    limits = [(device.memory_stats() or {}).get("bytes_limit", 0) for device in devices if device.platform != "cpu"]
    return float(sum(limits)) if limits and all(limits) else memory()  # not all platforms report it


@functools.cache  # Python's own filters forget what was shown whenever anything changes a filter
def _warn_once(text: str) -> None:
    warnings.warn(text, stacklevel=4)


def _how_to_get_more(num: int) -> str:
    return f"to get more, set the environment variable JAX_NUM_CPU_DEVICES={num} before Python starts"


def threads_may_run_out() -> bool:
    """Returns whether a JAX program that solves equations may hang, because JAX was started with few threads."""
    threads = int(os.environ.get("NPROC") or available_cores())
    return jax.__version_info__ < LAPACK_FIXED and threads < PROGRAM_THREADS


def _make_devices(number: int, *, lapack: bool) -> bool:
    """Makes JAX create `number` CPU devices, unless the user set a number; returns False if it has already started."""
    # An actor's core must not lend threads to the matrix products of other actors.
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    chosen = getattr(jax.config, JAX_CPU_DEVICES)
    count = chosen if chosen > 0 else number
    try:
        jax.config.update(JAX_CPU_DEVICES, count)
    except RuntimeError:
        return False
    # Nor should there be more threads than actors: XLA would split small loops over them, which takes longer than
    # running each loop on one thread. JAX reads NPROC when it starts.
    few = not lapack or jax.__version_info__ >= LAPACK_FIXED
    os.environ.setdefault("NPROC", str(count if few else max(count, PROGRAM_THREADS)))
    return True
