"""A tree of arrays as few vectors: what takes as long for one number as for many is done once."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree


def at_once(tree: PyTree, meet: Callable[[jax.Array], jax.Array], kind: Callable[[jax.Array], Any]) -> PyTree:
    """What `meet` makes of the leaves of a tree, called once for each kind of numbers instead of once a leaf.

    Args:
      tree: of arrays.
      meet: of a vector, number by number; it may add axes in front.
      kind: type of number that a leaf is seen as meanwhile; one of the same size.
    """
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    for dtype in dict.fromkeys(kind(leaf) for leaf in leaves):
        which = [number for number, leaf in enumerate(leaves) if kind(leaf) == dtype]
        met = meet(jnp.concatenate([_seen_as(leaves[number], dtype).reshape(-1) for number in which]))
        begin = 0
        for number in which:
            leaf = leaves[number]
            part = met[..., begin : begin + leaf.size].reshape(*met.shape[:-1], *leaf.shape)
            begin += leaf.size
            leaves[number] = _seen_as(part, leaf.dtype)
    return jax.tree.unflatten(structure, leaves)


def bits(leaf: jax.Array) -> jnp.dtype:
    """The whole numbers of the same size as those of a leaf; truth values take as much room as most others do."""
    return jnp.dtype(jnp.int32) if leaf.dtype == jnp.bool_ else jnp.dtype(f"int{8 * leaf.dtype.itemsize}")


def _seen_as(leaf: jax.Array, dtype: jnp.dtype) -> jax.Array:
    if jnp.bool_ in (leaf.dtype, dtype):
        return leaf.astype(dtype)
    return jax.lax.bitcast_convert_type(leaf, dtype)


AXIS, TRAININGS = "actors", "trainings"


# XLA ends a process in which an actor waits 60 seconds for another. At 5 Gflop/s this takes 20; what a task takes is
# known to a factor of two or three.
MOST_FLOPS_ALONE = 1e11


_alone = contextvars.ContextVar("alone", default=False)  # while what one actor does without the others is traced


_batched = contextvars.ContextVar("many", default=False)  # while several trainings that are one program are traced


def max_over_trainings(value: jax.Array) -> jax.Array:
    """Inside a mapped function: the largest value (or: whether any is true) of the trainings of this device.

    A loop or a branch that depends on it is one for all of them; otherwise every training would pay for both branches,
    and a loop would copy all that it carries.
    """
    if not _batched.get():
        return value
    return jax.lax.pmax(value.astype(jnp.int32), TRAININGS).astype(value.dtype)


def trainings_are_batched() -> bool:
    """Inside a mapped function: whether several trainings are one program."""
    return _batched.get()


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
        return tuple(without_collectives(task)() for task in tasks)
    shapes = [jax.eval_shape(without_collectives(task)) for task in tasks]
    nothing = [jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape) for shape in shapes]

    def only(number: int) -> Callable[[], tuple[PyTree, ...]]:
        return lambda: tuple(without_collectives(tasks[i])() if i == number else nothing[i] for i in range(len(tasks)))

    branches = [*map(only, range(len(tasks))), lambda: tuple(nothing)]
    # An index beyond the branches takes the last. Everyone but the one who did a task has zeros, and so does a sum of
    # all bits.
    done = jax.lax.switch(jax.lax.axis_index(AXIS), branches)
    return at_once(done, lambda vector: jax.lax.psum(vector, AXIS), bits)


def without_collectives(task: Callable[[], PyTree]) -> Callable[[], PyTree]:
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
