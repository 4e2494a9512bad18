"""Processes that train jointly: joining JAX's distributed runtime, agreeing on settings, ending together.

JAX's coordination service ends all processes when a connection closes. It does not notice a process that never reaches
a collective, in which the others would wait forever; `CollectiveTimeout` does.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxtrpo.parallel.background import in_background
from jaxtrpo.parallel.machine import ADDRESS, COUNT, INDEX

FAILED = 1  # exit code
START_SECONDS = 60  # within which all processes must join
# JAX measures the seconds since a heartbeat by the wall clock, which may jump by years where a machine finds its time
# server; so no process counts as dead for want of heartbeats, but `CollectiveTimeout` and closed connections end it.
HEARTBEAT_SECONDS = 2**31 - 1
SHUTDOWN_SECONDS = 20  # that a process waits for the others at its exit, as one of them may have been killed at its own
LATE_SECONDS = 45.0  # longest wait in a collective
LONG_LATE_SECONDS = 600.0  # where the others may compile first, or do what takes them much longer than this process
SIGN_SECONDS = 5.0  # between two signs of life of a process for which the others wait
MOST_BYTES = 2**17  # largest message to the other processes


def is_first() -> bool:
    """Returns whether this process writes files and prints. With several processes, this starts JAX."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def expected(processes: int | None) -> int | None:
    """Returns the number of joined processes before JAX starts; None if only JAX will know it."""
    return (int(os.environ.get(COUNT, "0")) or processes) if jax.distributed.is_initialized() else 1


def require_count(processes: int | None) -> None:
    """Raises ValueError if the number of processes, known once JAX has started, is not that of the setting."""
    if processes is not None and jax.distributed.is_initialized() and jax.process_count() != processes:
        raise ValueError(f"processes={processes}, but the launcher started {jax.process_count()}")


def require_alone(what: str) -> None:
    """Raises ValueError if a launcher started several processes."""
    count = os.environ.get(COUNT) or "1"
    if not count.isdecimal():
        raise ValueError(f"{COUNT}={count} must be a number of processes")
    number = max(jax.process_count() if jax.distributed.is_initialized() else 1, int(count))
    if number > 1:
        raise ValueError(f"{what} supports only a single process, but a launcher started {number}")


def join(processes: int | None) -> None:
    """Joins the other processes of a launcher, if there are any; JAX must not have started.

    Args:
      processes: required number of processes; None for JAX_NUM_PROCESSES, or 1 if that is unset.

    Raises:
      ValueError: no launcher was found, it started another number of processes, its variables are malformed, or JAX
        has already started.
      ConnectionError: the first process cannot listen at its address, or the others cannot reach it there.
    """
    address, count, index = (os.environ.get(name) or None for name in (ADDRESS, COUNT, INDEX))
    if jax.distributed.is_initialized():
        return
    if processes is not None and count is not None and not (count.isdecimal() and int(count) == processes):
        raise ValueError(f"processes={processes}, but the launcher started {count} ({COUNT})")
    if processes == 1 or count == "1":
        return
    if processes is count is None:
        given = [name for name in (ADDRESS, INDEX) if name in os.environ]
        if given:
            raise ValueError(f"{' and '.join(given)} without {COUNT}: set all three for each process, or none")
        return
    jax.config.update("jax_enable_preemption_service", False)  # it would intercept SIGTERM
    initialize = functools.partial(
        jax.distributed.initialize,
        initialization_timeout=START_SECONDS,
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=SHUTDOWN_SECONDS,
    )
    alone = (
        f"processes={processes}, but no launcher was found: use `jaxtrpo launch --processes {processes} -- "
        f"train ...`, or Slurm, Open MPI or Kubernetes, or set {ADDRESS}, {COUNT} and {INDEX}"
    )
    try:
        if count is None:
            initialize()  # finds Slurm, Open MPI, Kubernetes, ...
        else:
            _require_reachable(str(address), str(index))
            initialize(str(address), int(count), int(str(index)), cluster_detection_method="deactivate")
    except (ValueError, IndexError, OverflowError) as error:
        given = (
            f"{ADDRESS}={address}, {COUNT}={count}, {INDEX}={index} must be HOST:PORT, a number, and an index below it"
        )
        raise ValueError(alone if count is None else given) from error
    except jax.errors.JaxRuntimeError as error:
        raise ConnectionError(f"{ADDRESS}={address}: process 0 cannot listen there: {error}") from error
    except RuntimeError as error:  # JAX has started, and no longer looks for a launcher
        late = "JAX started before this process joined the others: call train before anything else that uses JAX"
        raise ValueError(f"{alone}, before any other use of JAX" if count is None else late) from error


def _require_reachable(address: str, index: str) -> None:
    """Raises ConnectionError if the first process is not reached in time; JAX would abort and not name its address."""
    host, _, port = address.rpartition(":")
    if not (port.isdecimal() and index.isdecimal() and int(index) > 0):
        return
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
            return
        except OSError as error:
            if time.monotonic() > end:
                reason = f"process 0 was not reached there within {START_SECONDS} s"
                raise ConnectionError(f"{ADDRESS}={address}: {reason}: {error}") from error
        time.sleep(0.1)


def exchange(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the messages of all processes, in order. All must call it, with messages that JSON can represent."""
    with CollectiveTimeout()():
        return _exchange(message)


def _exchange(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    devices = {one.process_index: one for one in reversed(jax.devices())}  # the first of each process
    mesh = Mesh([devices[index] for index in sorted(devices)], "process")
    own = np.frombuffer(json.dumps(message).encode().ljust(MOST_BYTES), np.uint8)[None]
    rows = jax.make_array_from_callback(
        (len(devices), MOST_BYTES), NamedSharding(mesh, PartitionSpec("process")), lambda _: own
    )
    gathered = jax.jit(lambda rows: rows, out_shardings=NamedSharding(mesh, PartitionSpec()))(rows)
    return [json.loads(bytes(row)) for row in np.asarray(gathered.addressable_data(0))]


@contextlib.contextmanager
def reporting_errors() -> Iterator[None]:
    """Sends an error to the other processes, which wait in `require_same`, and raises it."""
    try:
        yield
    except Exception as error:
        if jax.distributed.is_initialized():
            exchange({"error": str(error)[:1000]})
        raise


def require_same(own: Mapping[str, Any]) -> None:
    """Raises ValueError in all processes if their settings differ or one of them had an error."""
    messages = exchange(own)
    for number, each in enumerate(messages):
        if "error" in each:
            raise ValueError(f"process {number}: {each['error']}")
        for name, value in each.items():
            first = messages[0].get(name)
            if value != first:
                raise ValueError(f"processes differ: {name}={first} in process 0, {name}={value} in process {number}")


@contextlib.contextmanager
def ending_together() -> Iterator[None]:
    """Waits for the other processes at the end; after an error, exits at once, which ends the others.

    JAX's own exit would wait for the others, which wait for this process in a collective.
    """
    try:
        yield
    except SystemExit:  # all processes agreed on it
        exchange({})
        raise
    except BaseException:
        atexit.register(_exit)  # runs before JAX's own handlers
        raise
    exchange({})


def wait_together(work: Callable[[], object], agree: Callable[[int], int]) -> None:
    """Calls a function that takes one of the processes long, such as one that writes files; all wait until it is done.

    A process that works gives signs of life, without which the others end. All processes must call this.

    Args:
      work: part of this process, called on another thread.
      agree: collective, (value of this process) -> largest value of all processes.
    """
    waiting = CollectiveTimeout(LATE_SECONDS)
    working, is_busy = in_background(work), True
    while is_busy:
        wait([working], SIGN_SECONDS)
        with waiting():
            is_busy = agree(not working.done())
    working.result()


class CollectiveTimeout:
    """Ends this process if another does not reach a collective in time."""

    def __init__(self, first_seconds: float | None = None, least_seconds: float | None = None) -> None:
        """Limits the first wait to `LONG_LATE_SECONDS` and others to `LATE_SECONDS`, unless told otherwise."""
        self._seconds = LONG_LATE_SECONDS if first_seconds is None else first_seconds
        self._least = LATE_SECONDS if least_seconds is None else least_seconds

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Limits a wait; a later one to at least ten times the one before, which may have been computation."""
        sentence = f"jaxtrpo: error: another process did not reach a collective within {self._seconds:.0f} s"
        timer, begin = threading.Timer(self._seconds, _exit, (sentence,)), time.monotonic()
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
        self._seconds = max(self._least, 10 * (time.monotonic() - begin))


def _exit(sentence: str | None = None) -> None:
    if sentence is not None:
        print(sentence, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FAILED)
