"""How a function is mapped over the devices that collect and learn. Nobody above knows where these are.

An actor is one JAX device: a CPU core, or an accelerator, of this process or another. Each runs its own copy of a
function on its own environments; they meet only where the function sums, averages or gathers over actors.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from jaxtrpo.packing import at_once, bits

AXIS, TRAININGS = "actors", "trainings"
# XLA ends a process in which an actor waits 60 seconds for another. At 5 Gflop/s this takes 20; what a task takes is
# known to a factor of two or three.
MOST_FLOPS_ALONE = 1e11

_alone = contextvars.ContextVar("alone", default=False)  # while what one actor does without the others is traced
_many = contextvars.ContextVar("many", default=False)  # while several trainings that are one program are traced


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
                return by_one(lambda: jax.lax.map(lambda own: function(*own), arguments))()
            token = _many.set(True)
            try:
                return by_one(lambda: jax.vmap(function, axis_name=TRAININGS)(*arguments))()
            finally:
                _many.reset(token)

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


def most_of_trainings(value: jax.Array) -> jax.Array:
    """Inside a mapped function: the largest value (or: whether any is true) of the trainings of this device.

    A loop or a branch that depends on it is one for all of them; otherwise every training would pay for both branches,
    and a loop would copy all that it carries.
    """
    if not _many.get():
        return value
    return jax.lax.pmax(value.astype(jnp.int32), TRAININGS).astype(value.dtype)


def are_many() -> bool:
    """Inside a mapped function: whether several trainings are one program."""
    return _many.get()


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


def sum_over_actors(tree: PyTree) -> PyTree:
    """Inside a mapped function: the sum of every actor's value."""
    if _alone.get():
        return tree
    return at_once(tree, lambda vector: jax.lax.psum(vector, AXIS), lambda leaf: leaf.dtype)


def gather_envs(tree: PyTree, axis: int) -> PyTree:
    """Inside a mapped function: all actors' environments along `axis`, in the order that one actor would have them."""
    if num_actors() == 1:
        return tree  # without a copy

    def join(leaf: jax.Array) -> jax.Array:
        together = jnp.moveaxis(leaf, 0, axis)
        count, envs = together.shape[axis : axis + 2]
        return together.reshape(*together.shape[:axis], count * envs, *together.shape[axis + 2 :])

    def gather(vector: jax.Array) -> jax.Array:
        return jax.lax.all_gather(vector, AXIS)

    return jax.tree.map(join, at_once(tree, gather, bits))


def after(known: PyTree, value: PyTree) -> PyTree:
    """Inside a mapped function: the value, but not before the first is known.

    Where both lead to meetings of actors, everyone comes to them in the same order. XLA sees to that by itself, but not
    for meetings in loops of a program that it reads from the compilation cache; two that cross wait for ever.
    """
    return value if num_actors() == 1 else jax.lax.optimization_barrier((known, value))[1]


def side_by_side(*tasks: Callable[[], PyTree]) -> tuple[PyTree, ...]:
    """Inside a mapped function: every task is done by one actor, all at the same time, and everyone gets the results.

    A task runs as if its actor was the only one, so it needs everyone's data (see `gather_envs`). If there are fewer
    actors than tasks, everyone does all of them. No task may take much longer than MOST_FLOPS_ALONE.

    Args:
      tasks: without arguments; the leaves of their results are arrays.
    """
    if num_actors() < len(tasks):
        return tuple(by_one(task)() for task in tasks)
    shapes = [jax.eval_shape(by_one(task)) for task in tasks]
    nothing = [jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape) for shape in shapes]

    def only(number: int) -> Callable[[], tuple[PyTree, ...]]:
        return lambda: tuple(by_one(tasks[i])() if i == number else nothing[i] for i in range(len(tasks)))

    branches = [*map(only, range(len(tasks))), lambda: tuple(nothing)]
    # An index beyond the branches takes the last. Everyone but the one who did a task has zeros, and so does a sum of
    # all bits.
    done = jax.lax.switch(jax.lax.axis_index(AXIS), branches)
    return at_once(done, lambda vector: jax.lax.psum(vector, AXIS), bits)


def by_one(task: Callable[[], PyTree]) -> Callable[[], PyTree]:
    """The same, but whoever does it is the only actor that it knows of."""

    def alone() -> PyTree:
        token = _alone.set(True)
        try:
            return task()
        finally:
            _alone.reset(token)

    return alone


class Work(NamedTuple):
    """A part of a task of `side_by_side`."""

    flops: float  # on the samples of all actors
    shared: bool  # whether actors that did it together would share it; otherwise each would do all of it


def worth_side_by_side(*tasks: Sequence[Work]) -> bool:
    """Inside a mapped function: whether tasks end sooner each done by one actor than all by all, one after another."""
    longest = max(sum(part.flops for part in task) for task in tasks)
    parts = [part for task in tasks for part in task]
    together = sum(part.flops / num_actors() if part.shared else part.flops for part in parts)
    return longest < together and longest <= MOST_FLOPS_ALONE


def num_actors() -> int:
    """Inside a mapped function: how many actors run it."""
    return 1 if _alone.get() else jax.lax.axis_size(AXIS)
