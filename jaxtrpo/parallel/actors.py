"""Maps functions over the devices that collect and learn; other modules do not depend on where these are.

An actor is one JAX device: a CPU core or an accelerator, in this process or another. Each runs its own copy of a
function on its own environments; they communicate only where the function sums, averages or gathers over actors.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from jaxtrpo.parallel.collectives import AXIS, TRAININGS, _batched, _platform, without_collectives

MOST_SLEEP = 0.0005  # seconds between two looks at what is computed


class Actors(NamedTuple):
    """The devices that act as actors, in order."""

    devices: tuple[jax.Device, ...]  # pyright: ignore[reportInvalidTypeForm]

    @property
    def count(self) -> int:
        """Number of actors."""
        return len(self.devices)

    @property
    def own(self) -> tuple[jax.Device, ...]:  # pyright: ignore[reportInvalidTypeForm]
        """Devices of this process."""
        return tuple(device for device in self.devices if device.process_index == device.client.process_index())

    @property
    def in_one_process(self) -> bool:
        """Whether all devices belong to this process."""
        return len(self.own) == self.count

    def map(self, function: Callable, *, donate: Sequence[int] = ()) -> jax.stages.Wrapped:
        """Compiles `function` to run on every actor; arguments and results have a leading axis of actors.

        Args:
          function: one actor's part; may use the functions of `parallel.collectives`.
          donate: positions of arguments whose memory the results may reuse; these cannot be used afterwards.
        """

        def part(*arguments: PyTree) -> PyTree:
            own = jax.tree.map(lambda leaf: jax.lax.squeeze(leaf, [0]), arguments)
            return jax.tree.map(lambda leaf: jax.lax.expand_dims(leaf, [0]), function(*own))

        return _over_devices(self.devices, part, donate)

    def on_first(self) -> contextlib.AbstractContextManager[Any]:
        """Context in which unmapped functions run on this process's first actor, whatever JAX's default device is."""
        return jax.default_device(self.own[0])

    def replicate(self, tree: PyTree) -> PyTree:
        """Places a copy of a value on every actor."""

        def copies(leaf: Any) -> Any:
            # NumPy has no random keys; of everything else, it makes copies without compiling.
            is_key = jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)
            return (jnp if is_key else np).broadcast_to(leaf, (self.count, *np.shape(leaf)))

        return self._place(jax.tree.map(copies, tree))

    def split_envs(self, tree: PyTree) -> PyTree:
        """Splits the leading axis of environments into equal consecutive parts, one per actor."""

        def split(leaf: np.ndarray) -> np.ndarray:
            num, *rest = np.shape(leaf)
            return np.reshape(leaf, (self.count, num // self.count, *rest))  # -1 fails beside a size of 0

        return self._place(jax.tree.map(split, jax.device_get(tree)))

    def for_envs(self, number: int) -> Actors:
        """Returns the most of these actors that can share so many environments equally, as many in each process.

        If there are none, it returns all of them.
        """
        own = len(self.own)
        processes = self.count // own
        most = next((each for each in range(own, 0, -1) if number % (each * processes) == 0), own)
        return Actors(tuple(device for at, device in enumerate(self.devices) if at % own < most))

    def agree(self, value: int) -> int:
        """Returns the largest value over all processes, which must all call it at the same point of the training."""
        if self.in_one_process:
            return value
        return int(first(_largest(self)(self._place(np.full(self.count, value, np.int32)))))

    def _place(self, tree: PyTree) -> PyTree:
        if self.in_one_process:
            return _identity(self)(tree)
        sharding = _sharding_of(self.devices)

        def place(leaf: Any) -> jax.Array:
            leaf = np.asarray(leaf)
            return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])

        return jax.tree.map(place, tree)


class Trainings(NamedTuple):
    """Trainings compiled as one program and split over devices. Each has one actor and is independent of the others."""

    devices: tuple[jax.Device, ...]  # pyright: ignore[reportInvalidTypeForm]
    number: int  # trainings; a multiple of the number of devices

    def map(self, function: Callable, *, donate: Sequence[int] = (), in_turn: bool = False) -> jax.stages.Wrapped:
        """Compiles `function` to run for every training; arguments and results have a leading axis of trainings.

        Args:
          function: one training's part.
          donate: see `Actors.map`.
          in_turn: on a CPU, run one training after another. Where matrix products are large, batching those of several
            trainings saves nothing, and XLA's loops over batched products are slow on a CPU.
        """

        def part(*arguments: PyTree) -> PyTree:
            if in_turn and self.devices[0].platform == "cpu":
                return without_collectives(lambda: jax.lax.map(lambda own: function(*own), arguments))()
            token = _batched.set(True)
            try:
                return without_collectives(lambda: jax.vmap(function, axis_name=TRAININGS)(*arguments))()
            finally:
                _batched.reset(token)

        return _over_devices(self.devices, part, donate)


def _over_devices(
    devices: Sequence[jax.Device],  # pyright: ignore[reportInvalidTypeForm]
    part: Callable,
    donate: Sequence[int],
) -> jax.stages.Wrapped:
    """Compiles `part` to run on every device; the leading axis of arguments and results is split over the devices."""
    sharding = _sharding_of(devices)

    def on_devices(*arguments: PyTree) -> PyTree:
        token = _platform.set(devices[0].platform)
        try:
            return part(*arguments)
        finally:
            _platform.reset(token)

    # What `jax.pmap` is built from, whose cache would keep every program for the life of the process.
    mapped = jax.shard_map(
        on_devices, mesh=sharding.mesh, in_specs=sharding.spec, out_specs=sharding.spec, check_vma=False
    )
    return jax.jit(mapped, in_shardings=sharding, out_shardings=sharding, donate_argnums=donate)


def _sharding_of(devices: Sequence[jax.Device]) -> NamedSharding:  # pyright: ignore[reportInvalidTypeForm]
    return NamedSharding(Mesh(np.array(devices), (AXIS,)), PartitionSpec(AXIS))


@functools.cache  # a new function would be compiled again
def _identity(actors: Actors) -> jax.stages.Wrapped:
    return actors.map(lambda leaf: leaf)


@functools.cache
def _largest(actors: Actors) -> jax.stages.Wrapped:
    return actors.map(lambda value: jax.lax.pmax(value, AXIS))


def copied(leaf: Any) -> Any:
    """Copies an array on its devices, or on the host, without the other processes."""
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    parts = [jnp.copy(shard.data) for shard in leaf.addressable_shards]
    return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, parts)


def filled(like: Any, value: float) -> Any:
    """Returns an array like a placed one, or one on the host, that holds one value, and shares no memory.

    It is placed without a program, which would have to be compiled, and without the other processes.
    """
    if isinstance(like, np.ndarray):
        return np.full_like(like, value)
    parts = [
        jax.device_put(np.full(shard.data.shape, value, like.dtype), shard.device, may_alias=False)
        for shard in like.addressable_shards
    ]
    return jax.make_array_from_single_device_arrays(like.shape, like.sharding, parts)


def first(tree: PyTree) -> PyTree:
    """Returns one actor's copy, on the host, of a value that is equal on all actors.

    Raises:
      RuntimeError: one of this process's actors could not compute it, because another process has ended.
    """
    _wait(tree)
    shards = jax.device_get(jax.tree.map(_first_shard, tree))
    # NumPy reshapes, because JAX would compile a program for every shape.
    return jax.tree.map(lambda shard, leaf: np.reshape(shard, leaf.shape[1:]), shards, tree)


def _is_local(leaf: Any) -> bool:
    return not isinstance(leaf, jax.Array) or leaf.is_fully_addressable


@functools.cache  # a new function would be compiled again
def _everywhere(mesh: Mesh) -> jax.stages.Wrapped:
    """Compiles a function that copies an array to all devices of all processes."""
    return jax.jit(lambda leaf: leaf, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _wait(tree: PyTree) -> None:
    """Waits until every actor of this process has computed its part of arrays that several processes compute.

    When another process ends, the actor that exchanges data with it fails, but the ones beside it, which exchange data
    with that actor, wait forever. Whoever waits for one of them would never see the error, so all are polled.
    """
    arrays = [leaf for leaf in jax.tree.leaves(tree) if not _is_local(leaf)]
    pending = [shard.data for leaf in arrays for shard in leaf.addressable_shards]
    begin = time.perf_counter()
    while pending:
        is_ready = [part.is_ready() for part in pending]
        for part in itertools.compress(pending, is_ready):
            part.block_until_ready()  # raises its error
        pending = [part for part, done in zip(pending, is_ready, strict=True) if not done]
        if pending:
            time.sleep(min(MOST_SLEEP, (time.perf_counter() - begin) / 50))


def _first_shard(leaf: Any) -> Any:
    return leaf.addressable_shards[0].data if isinstance(leaf, jax.Array) else leaf[:1]


def join_envs(tree: PyTree) -> PyTree:
    """Undoes `Actors.split_envs`, on the host; with several processes, all must call it.

    Raises:
      RuntimeError: see `first`.
    """

    def gathered(leaf: Any) -> Any:
        return leaf if _is_local(leaf) else _everywhere(leaf.sharding.mesh)(leaf)

    copies = jax.tree.map(gathered, tree)
    _wait(copies)
    everywhere = jax.device_get(copies)
    return jax.tree.map(lambda leaf: np.reshape(leaf, (leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])), everywhere)
