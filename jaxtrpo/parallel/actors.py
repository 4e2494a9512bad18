"""How a function is mapped over the devices that collect and learn. Nobody above knows where these are.

An actor is one JAX device: a CPU core, or an accelerator, of this process or another. Each runs its own copy of a
function on its own environments; they meet only where the function sums, averages or gathers over actors.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from jaxtrpo.parallel.collectives import AXIS, TRAININGS, _batched, without_collectives


class Actors(NamedTuple):
    """The devices, in order."""

    devices: tuple[jax.Device, ...]  # pyright: ignore[reportInvalidTypeForm]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.devices)

    @property
    def own(self) -> tuple[jax.Device, ...]:  # pyright: ignore[reportInvalidTypeForm]
        """Those of this process."""
        return tuple(device for device in self.devices if device.process_index == device.client.process_index())

    @property
    def here(self) -> bool:
        """Whether all belong to this process."""
        return len(self.own) == self.count

    def map(self, function: Callable, *, donate: Sequence[int] = ()) -> jax.stages.Wrapped:
        """Compiles `function` to run on every actor; arguments and results have a leading axis of actors.

        Args:
          function: one actor's part; may use the functions below.
          donate: numbers of arguments whose memory results may take; nobody can use these arguments afterwards.
        """

        def part(*arguments: PyTree) -> PyTree:
            own = jax.tree.map(lambda leaf: jax.lax.squeeze(leaf, [0]), arguments)
            return jax.tree.map(lambda leaf: jax.lax.expand_dims(leaf, [0]), function(*own))

        return _over_devices(self.devices, part, donate)

    def on_first(self) -> contextlib.AbstractContextManager[Any]:
        """While it lasts, what is not mapped runs on this process's first actor, whatever JAX's default device is."""
        return jax.default_device(self.own[0])

    def replicate(self, tree: PyTree) -> PyTree:
        """The same value for every actor."""
        return self._place(jax.tree.map(lambda leaf: np.broadcast_to(leaf, (self.count, *np.shape(leaf))), tree))

    def split_envs(self, tree: PyTree) -> PyTree:
        """Deals out the leading axis of environments in equal consecutive parts."""

        def split(leaf: np.ndarray) -> np.ndarray:
            num, *rest = np.shape(leaf)
            return np.reshape(leaf, (self.count, num // self.count, *rest))  # -1 cannot stand beside a size of 0

        return self._place(jax.tree.map(split, jax.device_get(tree)))

    def agree(self, wishes: int) -> int:
        """The largest of what the processes say here; all must ask, at the same point of the training."""
        if self.here:
            return wishes
        return int(first(_largest(self)(self._place(np.full(self.count, wishes, np.int32)))))

    def _place(self, tree: PyTree) -> PyTree:
        if self.here:
            return _identity(self)(tree)
        dealt = _dealt(self.devices)

        def place(leaf: Any) -> jax.Array:
            leaf = np.asarray(leaf)
            return jax.make_array_from_callback(leaf.shape, dealt, lambda index: leaf[index])

        return jax.tree.map(place, tree)


class Trainings(NamedTuple):
    """Trainings that are one program, dealt out to the devices. Each has one actor and knows nothing of the others."""

    devices: tuple[jax.Device, ...]  # pyright: ignore[reportInvalidTypeForm]
    number: int  # of trainings; a multiple of the devices

    def map(self, function: Callable, *, donate: Sequence[int] = (), in_turn: bool = False) -> jax.stages.Wrapped:
        """As `Actors.map`; arguments and results have a leading axis of trainings.

        Args:
          function: one training's part.
          donate: as there.
          in_turn: on a CPU, one training after another: where its products are large, nothing is gained by making those
            of several trainings one, and XLA's loops over such are slow there.
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
    """Compiles `part` to run on every device; the leading axis of arguments and results is dealt out to them."""
    dealt = _dealt(devices)
    # What `jax.pmap` is made of. Its own cache keeps every program for as long as the process lives.
    mapped = jax.shard_map(part, mesh=dealt.mesh, in_specs=dealt.spec, out_specs=dealt.spec, check_vma=False)
    return jax.jit(mapped, in_shardings=dealt, out_shardings=dealt, donate_argnums=donate)


def _dealt(devices: Sequence[jax.Device]) -> NamedSharding:  # pyright: ignore[reportInvalidTypeForm]
    return NamedSharding(Mesh(np.array(devices), (AXIS,)), PartitionSpec(AXIS))


@functools.cache  # a new one would be compiled again
def _identity(actors: Actors) -> jax.stages.Wrapped:
    return actors.map(lambda leaf: leaf)


@functools.cache
def _largest(actors: Actors) -> jax.stages.Wrapped:
    return actors.map(lambda value: jax.lax.pmax(value, AXIS))


def copied(leaf: jax.Array) -> jax.Array:
    """The same on the same devices, in memory of its own."""
    parts = [jnp.copy(shard.data) for shard in leaf.addressable_shards]
    return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, parts)


def first(tree: PyTree) -> PyTree:
    """One actor's copy, on the host, of a value that all share."""
    shards = jax.device_get(jax.tree.map(_first_shard, tree))
    # Reshaped by NumPy, because JAX would compile a program for every shape.
    return jax.tree.map(lambda shard, leaf: np.reshape(shard, leaf.shape[1:]), shards, tree)


def _first_shard(leaf: Any) -> Any:
    return leaf.addressable_shards[0].data if isinstance(leaf, jax.Array) else leaf[:1]


def join_envs(tree: PyTree) -> PyTree:
    """Undoes `Actors.split_envs`, on the host; where there are several processes, all must ask."""

    def everyone(leaf: Any) -> Any:
        here = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable
        return leaf if here else multihost_utils.process_allgather(leaf, tiled=True)

    everywhere = jax.device_get(jax.tree.map(everyone, tree))
    return jax.tree.map(lambda leaf: np.reshape(leaf, (leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])), everywhere)
