"""Which devices there are, and which of them are actors."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

import jax

from jaxtrpo.parallel.actors import Actors
from jaxtrpo.parallel.machine import available_cores, memory

JAX_CPU_DEVICES, DOUBLE_PRECISION = "jax_num_cpu_devices", "jax_enable_x64"
# Until 0.11.2 jaxlib's LAPACK deals a batch out to XLA's threads and waits for them on one of these: once as many wait
# as there are, nobody works. A program of Brax has some dozen places where one may wait.
NEVER_WAITS, THREADS_OF_PROGRAMS = (0, 11, 2), 64


def choose_actors(
    num: int | None = None,
    *,
    device: str = "cpu",
    for_good: bool = False,
    program: bool = False,
    together: int | None = 1,
) -> Actors:
    """Takes `num` devices as actors, or all of them.

    JAX decides how many devices a CPU has when it starts. If it has not started yet, every core becomes one.

    Args:
      num: how many; all if not given.
      device: cpu, gpu, tpu, or auto: the accelerators for a program if there are any, else the CPU.
      for_good: this process will have no others, so that JAX need not make a device of every core: one that is not used
        costs a thread that gets in the way.
      program: environments are JAX programs, which may solve equations by LAPACK.
      together: processes whose devices are taken, as many of each; None if only JAX, once started, knows.

    Raises:
      ValueError: there are fewer devices than asked for, or none of this kind; or JAX is in double precision.
    """
    if getattr(jax.config, DOUBLE_PRECISION):
        raise ValueError(
            f"{DOUBLE_PRECISION} is on, but jaxtrpo works in float32: unset {DOUBLE_PRECISION.upper()}, or call "
            f"jax.config.update({DOUBLE_PRECISION!r}, False)"
        )
    own = num and num // (together or 1)
    already_started = not _make_devices(
        min(own, available_cores()) if own and for_good else available_cores(), program=program
    )
    # JAX starts its threads here.
    with nullcontext() if together == 1 else _threads_that_do_not_interrupt():
        platform = _platform(device, program=program)
        here = jax.local_devices(backend=platform)
    together = together or jax.process_count()
    if num is not None and num % together:
        raise ValueError(f"actors={num} must be a multiple of the {together} processes")
    own = num and num // together
    if own is not None and own > len(here):
        how = _how_to_get_more(own) if platform == "cpu" else "each is an actor"
        whose = "" if together == 1 else " in each process"
        raise ValueError(f"actors={num}, but there are {len(here)} {platform.upper()} devices{whose}; {how}")
    chosen = getattr(jax.config, JAX_CPU_DEVICES) == len(here)  # by who set the variable
    if num is None and already_started and platform == "cpu" and not chosen and len(here) < available_cores():
        warnings.warn(
            f"JAX was already started with {len(here)} CPU devices on {available_cores()} cores, so training uses "
            f"{len(here)}; {_how_to_get_more(available_cores())}",
            stacklevel=3,
        )
    if together == 1:
        return Actors(tuple(here[:own]))
    everywhere = [
        [one for one in jax.devices(platform) if one.process_index == number][:own] for number in range(together)
    ]
    return Actors(tuple(itertools.chain(*everywhere)))


@contextmanager
def _threads_that_do_not_interrupt() -> Iterator[None]:
    """While it lasts, threads are started that wait for a running one to pause, where the system knows such.

    What comes from another process is received by a thread of gloo's. If it wakes while the thread that sends is in the
    middle of that, with the lock that both need, it asks for the lock again and again until its time slice is over: on
    a core that they share, a meeting then takes 4 ms in place of 0.1.
    """
    if not hasattr(os, "SCHED_BATCH") or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield
        return
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # is inherited
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _platform(device: str, *, program: bool) -> str:
    """What JAX calls the kind of device."""
    if device == "auto":
        return jax.default_backend() if program else "cpu"
    try:
        jax.local_devices(backend=device)
    except RuntimeError:
        raise ValueError(
            f"device={device}: JAX finds none here, only {jax.default_backend()}; a GPU or TPU needs JAX's own package "
            "for it, such as pip install 'jax[cuda12]'"
        ) from None
    return device


def memory_of(devices: Iterable[jax.Device]) -> float:  # pyright: ignore[reportInvalidTypeForm]
    """Bytes that devices have for arrays: the machine's memory if they are its cores."""
    limits = [(device.memory_stats() or {}).get("bytes_limit", 0) for device in devices if device.platform != "cpu"]
    return float(sum(limits)) if limits and all(limits) else memory()  # not every kind says


def _how_to_get_more(num: int) -> str:
    return f"to get more, set the environment variable JAX_NUM_CPU_DEVICES={num} before Python starts"


def threads_may_run_out() -> bool:
    """Whether a JAX program that solves equations may wait for ever, since JAX was started with few threads."""
    threads = int(os.environ.get("NPROC") or available_cores())
    return jax.__version_info__ < NEVER_WAITS and threads < THREADS_OF_PROGRAMS


def _make_devices(number: int, *, program: bool) -> bool:
    """Tells JAX to make so many devices, unless the user said how many; returns False if it has started already."""
    # A core that is an actor must not lend its threads to the others' matrix products.
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    asked_for = getattr(jax.config, JAX_CPU_DEVICES)
    count = asked_for if asked_for > 0 else number
    try:
        jax.config.update(JAX_CPU_DEVICES, count)
    except RuntimeError:
        return False
    # Nor are there more threads than actors: XLA would have others do small parts of a loop, which takes longer than
    # if one thread does all of it. JAX reads this when it starts.
    few = not program or jax.__version_info__ >= NEVER_WAITS
    os.environ.setdefault("NPROC", str(count if few else max(count, THREADS_OF_PROGRAMS)))
    return True
