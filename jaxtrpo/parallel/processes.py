"""Which processes train together: found where a launcher says it, joined by JAX's distributed runtime, of one mind."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax._src import distributed
from jax._src.clusters.cluster import ClusterEnv

from jaxtrpo.parallel.connections import free_port, relay
from jaxtrpo.parallel.group import ADDRESS, COUNT, INDEX, Group, Place

COORDINATOR_SECONDS = 60.0  # until all have to be there
TOGETHER_SECONDS = 600.0  # that one process may take longer than another to read what it is asked for
FOREVER = 10**6  # seconds; `Group` notices earlier, and says a sentence

_groups: list[Group] = []  # at most one


def group() -> Group | None:
    """The processes that this one has joined, if there are others."""
    return _groups[0] if _groups else None


def is_first() -> bool:
    """Whether this process writes and speaks for all."""
    return not _groups or _groups[0].place.index == 0


def require_alone(what: str) -> None:
    """Raises ValueError where a launcher has started several processes."""
    number = max(distributed.global_state.num_processes, int(os.environ.get(COUNT, "1")))
    if number > 1:
        raise ValueError(f"{what} uses the devices of one process; a launcher has started {number}")


def join(processes: int | None) -> None:
    """Joins the other processes of a launcher, if there are any; what is done before JAX starts has to be done.

    Args:
      processes: how many there must be; None takes as many as JAX_NUM_PROCESSES says, or 1.

    Raises:
      ValueError: there are not so many.
      ConnectionError: they do not find each other; one sentence.
    """
    if processes == 1 and not _groups:
        return
    if _groups or distributed.global_state.client is not None:
        _require(processes, _groups[0].place.count if _groups else distributed.global_state.num_processes)
        if not _groups and distributed.global_state.num_processes > 1:
            _know_each_other(_place_beside_jax())
            atexit.register(_groups[0].close)
        return
    place = _place(processes)
    if place is None:
        return
    _require(processes, place.count)
    if place.count == 1:
        return
    found = _know_each_other(place)
    # Everyone is there: JAX, which ends a process that waits in vain, need not wait for anyone.
    host = place.address.rsplit(":", 1)[0]
    port = found.exchange(free_port() if place.index == 0 else None, COORDINATOR_SECONDS)[0]
    jax.distributed.initialize(
        f"{host}:{port}" if place.index == 0 else relay(host, port),
        place.count,
        place.index,
        cluster_detection_method="deactivate",
        heartbeat_timeout_seconds=FOREVER,
    )
    atexit.register(found.close)  # what is registered last is called first


def require_same(said: Sequence[Mapping[str, Any]], own: int) -> None:
    """Refuses processes that are not of one mind, in all of them.

    Args:
      said: by each process: its settings, or the `error` that ends it.
      own: number of this one.

    Raises:
      ValueError: one sentence with what differs, or with the error of another.
    """
    for number, each in enumerate(said):
        if number != own and "error" in each:
            raise ValueError(f"process {number}: {each['error']}")
    for name in said[0]:
        values = [each.get(name) for each in said]
        for number, value in enumerate(values):
            if value != values[0]:
                raise ValueError(
                    f"processes differ: {name}={values[0]} in process 0, {name}={value} in process {number}"
                )


def _know_each_other(place: Place) -> Group:
    made = Group(place, COORDINATOR_SECONDS)
    _groups.append(made)
    threading.Thread(target=made.end_without_others, daemon=True).start()
    return made


def _require(asked: int | None, there: int) -> None:
    if asked is not None and asked != there:
        raise ValueError(f"processes={asked}, but the launcher started {there}")


def _place(processes: int | None) -> Place | None:
    """What the launcher says, in our words or in those that JAX knows (Slurm, Open MPI, Kubernetes, ...)."""
    said = [os.environ.get(name) for name in (ADDRESS, COUNT, INDEX)]
    if said[1] is not None:
        return _as_place(*said)
    if processes is None:
        return None
    address, count, index, _ = ClusterEnv.auto_detect_unset_distributed_params(None, None, None, None, None, 60)
    if address is None or count is None or index is None:
        raise ValueError(
            f"processes={processes}, but nothing has started so many: on one machine "
            f"`jaxtrpo launch --processes {processes} -- train ...` does, on several Slurm, Open MPI or Kubernetes, or "
            f"whoever sets {ADDRESS}, {COUNT} and {INDEX}"
        )
    return Place(address, count, index)


def _as_place(address: str | None, count: str | None, index: str | None) -> Place:
    try:
        place = Place(str(address), int(str(count)), int(str(index)))
        if place.count >= 1 and 0 <= place.index < place.count and 0 < int(place.address.rsplit(":", 1)[1]) < 2**16:
            return place
    except (ValueError, IndexError):
        pass
    raise ValueError(
        f"{ADDRESS}={address}, {COUNT}={count}, {INDEX}={index} must be HOST:PORT, a number, and one below it"
    )


def _place_beside_jax() -> Place:
    """Where a script has called `jax.distributed.initialize` itself, whose port is taken."""
    state: Any = distributed.global_state
    if state.process_id == 0:
        state.client.key_value_set("jaxtrpo/port", str(free_port()))
    port = state.client.blocking_key_value_get("jaxtrpo/port", int(1000 * COORDINATOR_SECONDS))
    return Place(f"{state.coordinator_address.rsplit(':', 1)[0]}:{port}", state.num_processes, state.process_id)
