"""Processes that train jointly: joining JAX's distributed runtime, agreeing on settings, ending together.

JAX's coordination service ends all processes when one dies or sends no heartbeats. What it does not notice is a process
that lives but never reaches a collective, in which the others would wait forever: `Patience` does.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxtrpo.parallel.machine import ADDRESS, COUNT, INDEX

FAILED = 1  # exit code
START_SECONDS = 60  # within which all processes must join
HEARTBEAT_SECONDS = 20  # without a heartbeat until a process counts as dead
LATE_SECONDS, FIRST_LATE_SECONDS = 45.0, 600.0  # that a collective waits; before the first one all compile
MOST_BYTES = 2**17  # of what one process tells the others


def is_first() -> bool:
    """Whether this process writes files and prints. Where there are several, this starts JAX."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def expected(processes: int | None) -> int | None:
    """Returns the number of joined processes before JAX starts; None if only JAX will know."""
    return (int(os.environ.get(COUNT, "0")) or processes) if jax.distributed.is_initialized() else 1


def require_count(processes: int | None) -> None:
    """Raises ValueError if JAX, once started, knows another number of processes than the setting."""
    if processes is not None and jax.distributed.is_initialized() and jax.process_count() != processes:
        raise ValueError(f"processes={processes}, but the launcher started {jax.process_count()}")


def require_alone(what: str) -> None:
    """Raises ValueError where a launcher has started several processes."""
    number = max(jax.process_count() if jax.distributed.is_initialized() else 1, int(os.environ.get(COUNT, "1")))
    if number > 1:
        raise ValueError(f"{what} uses the devices of one process; a launcher has started {number}")


def join(processes: int | None) -> None:
    """Joins the other processes of a launcher, if there are any; JAX must not have started.

    Args:
      processes: how many there must be; None takes JAX_NUM_PROCESSES, or 1.

    Raises:
      ValueError: no launcher was found, its variables are malformed, or JAX has started.
      ConnectionError: the first process cannot listen at its address.
    """
    address, count, index = (os.environ.get(name) for name in (ADDRESS, COUNT, INDEX))
    if jax.distributed.is_initialized() or processes == 1 or count == "1" or processes is count is None:
        return
    jax.config.update("jax_enable_preemption_service", False)  # it would keep SIGTERM from us
    initialize = functools.partial(
        jax.distributed.initialize,
        initialization_timeout=START_SECONDS,
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
    )
    alone = (
        f"processes={processes}, but no launcher was found: use `jaxtrpo launch --processes {processes} -- "
        f"train ...`, or Slurm, Open MPI or Kubernetes, or set {ADDRESS}, {COUNT} and {INDEX}"
    )
    try:
        if count is None:
            initialize()  # finds Slurm, Open MPI, Kubernetes, ...
        else:
            initialize(str(address), int(count), int(str(index)), cluster_detection_method="deactivate")
    except (ValueError, IndexError) as error:
        given = f"{ADDRESS}={address}, {COUNT}={count}, {INDEX}={index} must be HOST:PORT, a number, and one below it"
        raise ValueError(alone if count is None else given) from error
    except jax.errors.JaxRuntimeError as error:
        raise ConnectionError(f"{ADDRESS}={address}: process 0 cannot listen there: {error}") from error
    except RuntimeError as error:  # JAX has started, and looks for no launcher any more
        late = "JAX started before this process joined the others: call train before anything else that uses JAX"
        raise ValueError(f"{alone}; before any other use of JAX" if count is None else late) from error


def exchange(said: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns what every process says, in order; all must call it, with what JSON can hold."""
    devices = {one.process_index: one for one in reversed(jax.devices())}  # the first of each process
    mesh = Mesh([devices[index] for index in sorted(devices)], "process")
    own = np.frombuffer(json.dumps(said).encode().ljust(MOST_BYTES), np.uint8)[None]
    rows = jax.make_array_from_callback(
        (len(devices), MOST_BYTES), NamedSharding(mesh, PartitionSpec("process")), lambda _: own
    )
    gathered = jax.jit(lambda rows: rows, out_shardings=NamedSharding(mesh, PartitionSpec()))(rows)
    return [json.loads(bytes(row)) for row in np.asarray(gathered.addressable_data(0))]


@contextlib.contextmanager
def telling_errors() -> Iterator[None]:
    """Tells the others, which wait in `require_same`, about an error."""
    try:
        yield
    except Exception as error:
        if jax.distributed.is_initialized():
            exchange({"error": str(error)[:1000]})
        raise


def require_same(own: Mapping[str, Any]) -> None:
    """Raises ValueError in all processes if settings differ, or if one of them had an error."""
    said = exchange(own)
    for number, each in enumerate(said):
        if "error" in each:
            raise ValueError(f"process {number}: {each['error']}")
        for name, value in each.items():
            if value != said[0].get(name):
                first = said[0].get(name)
                raise ValueError(f"processes differ: {name}={first} in process 0, {name}={value} in process {number}")


@contextlib.contextmanager
def ending_together() -> Iterator[None]:
    """Waits for the others at the end; after an error it makes this process exit at once, and so ends the others.

    JAX's own exit would wait for the others, which wait for this process in a collective.
    """
    try:
        yield
    except SystemExit:  # on which all have agreed
        exchange({})
        raise
    except BaseException:
        atexit.register(_exit)  # before what JAX has registered
        raise
    exchange({})


class Patience:
    """Ends this process if another does not come to a collective."""

    def __init__(self) -> None:
        self._seconds = FIRST_LATE_SECONDS

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Limits a wait to `LATE_SECONDS`, or to ten times the last one, since some of it may be work."""
        sentence = f"jaxtrpo: error: another process did not come within {self._seconds:.0f} s"
        timer, begin = threading.Timer(self._seconds, _exit, (sentence,)), time.monotonic()
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
        self._seconds = max(LATE_SECONDS, 10 * (time.monotonic() - begin))


def _exit(sentence: str | None = None) -> None:
    if sentence is not None:
        print(sentence, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FAILED)
