"""Sums and gathers over actors, and tasks that actors run side by side."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree


def apply_packed(
    tree: PyTree, collective: Callable[[jax.Array], jax.Array], view_dtype: Callable[[jax.Array], Any]
) -> PyTree:
    """Applies a collective to all leaves of a tree, packed into one vector per dtype instead of called once per leaf.

    A collective takes about as long for one number as for many.

    Args:
      tree: pytree of arrays.
      collective: elementwise function of a vector, which may add leading axes.
      view_dtype: leaf -> dtype of the same size that the leaf is viewed as in the vector.
    """
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    for dtype in dict.fromkeys(view_dtype(leaf) for leaf in leaves):
        which = [number for number, leaf in enumerate(leaves) if view_dtype(leaf) == dtype]
        result = collective(jnp.concatenate([_view_as(leaves[number], dtype).reshape(-1) for number in which]))
        begin = 0
        for number in which:
            leaf = leaves[number]
            part = result[..., begin : begin + leaf.size].reshape(*result.shape[:-1], *leaf.shape)
            begin += leaf.size
            leaves[number] = _view_as(part, leaf.dtype)
    return jax.tree.unflatten(structure, leaves)


def bits(leaf: jax.Array) -> jnp.dtype:
    """Returns the integer dtype of the same size as a leaf's; booleans become int32, to be packed with most leaves."""
    return jnp.dtype(jnp.int32) if leaf.dtype == jnp.bool_ else jnp.dtype(f"int{8 * leaf.dtype.itemsize}")


def _view_as(leaf: jax.Array, dtype: jnp.dtype) -> jax.Array:
    if jnp.bool_ in (leaf.dtype, dtype):
        return leaf.astype(dtype)
    return jax.lax.bitcast_convert_type(leaf, dtype)


AXIS, TRAININGS = "actors", "trainings"


# XLA aborts a process in which an actor waits 60 s for another. At 5 Gflop/s, this many take 20 s, since the cost of a
# task is known only to a factor of two or three.
MOST_FLOPS_ALONE = 1e11


_alone = contextvars.ContextVar("alone", default=False)  # set while code that one actor runs on its own is traced


_batched = contextvars.ContextVar("batched", default=False)  # set while one program of several trainings is traced


_platform = contextvars.ContextVar[str | None]("platform", default=None)  # of the devices a function is traced for


def on_cpu() -> bool:
    """Returns whether actors are CPU cores; outside of a mapped function, whether JAX's default device is one."""
    return (_platform.get() or jax.default_backend()) == "cpu"


def max_over_trainings(value: jax.Array) -> jax.Array:
    """Inside a mapped function: returns the largest value (for booleans: any) over the trainings of this device.

    A loop or branch that depends on it is shared by these trainings. Otherwise every training would pay for both
    branches, and a loop would copy its whole carry.
    """
    if not _batched.get():
        return value
    return jax.lax.pmax(value.astype(jnp.int32), TRAININGS).astype(value.dtype)


def trainings_are_batched() -> bool:
    """Inside a mapped function: returns whether one program runs several trainings."""
    return _batched.get()


def sum_over_actors(tree: PyTree) -> PyTree:
    """Inside a mapped function: returns the sum over all actors."""
    if _alone.get():
        return tree
    return apply_packed(tree, lambda vector: jax.lax.psum(vector, AXIS), lambda leaf: leaf.dtype)


def share_of(vector: jax.Array) -> jax.Array:
    """Inside a mapped function: returns this actor's share of a vector, whose size is a multiple of their number."""
    if num_actors() == 1:
        return vector
    size = len(vector) // num_actors()
    return jax.lax.dynamic_slice_in_dim(vector, jax.lax.axis_index(AXIS) * size, size)


def share_of_sum(vector: jax.Array) -> jax.Array:
    """Inside a mapped function: returns this actor's share of the sum of a vector over all actors."""
    return vector if num_actors() == 1 else jax.lax.psum_scatter(vector, AXIS, tiled=True)


def from_shares(tree: PyTree) -> PyTree:
    """Inside a mapped function: returns the vectors of which every actor has a share."""
    if num_actors() == 1:
        return tree
    gathered = apply_packed(tree, lambda vector: jax.lax.all_gather(vector, AXIS), lambda leaf: leaf.dtype)
    return jax.tree.map(lambda leaf: leaf.reshape(-1), gathered)


def gather_envs(tree: PyTree, axis: int) -> PyTree:
    """Inside a mapped function: gathers the environments of all actors along `axis`, in the order of a single actor."""
    if num_actors() == 1:
        return tree  # without a copy

    def join(leaf: jax.Array) -> jax.Array:
        together = jnp.moveaxis(leaf, 0, axis)
        count, envs = together.shape[axis : axis + 2]
        return together.reshape(*together.shape[:axis], count * envs, *together.shape[axis + 2 :])

    def gather(vector: jax.Array) -> jax.Array:
        return jax.lax.all_gather(vector, AXIS)

    return jax.tree.map(join, apply_packed(tree, gather, bits))


def after(known: PyTree, value: PyTree) -> PyTree:
    """Inside a mapped function: returns `value`, computed only after `known`.

    If both need collectives, all actors must reach them in the same order. XLA ensures this itself, except for
    collectives in loops of a program that was read from the compilation cache; two that cross deadlock.
    """
    return value if num_actors() == 1 else jax.lax.optimization_barrier((known, value))[1]


class Copies(NamedTuple):
    """A task for `side_by_side` that runs several times."""

    number: int
    task: Callable[[jax.Array], PyTree]  # index of the copy -> its result; compiled once

    def in_turn(self) -> PyTree:
        """Runs all copies, one after another, and stacks their results along a leading axis."""
        return jax.lax.map(self.task, jnp.arange(self.number))


def side_by_side(*tasks: Callable[[], PyTree] | Copies) -> tuple[PyTree, ...]:
    """Inside a mapped function: distributes tasks over the actors; every actor gets all results.

    A task runs as if its actor were the only one, so it needs the data of all actors (see `gather_envs`). Tasks and
    copies take actors in turn, beginning with the first (see `worth_side_by_side`). No actor may need many more flops
    than MOST_FLOPS_ALONE.

    Args:
      tasks: functions without arguments that return pytrees of arrays, or copies of functions, whose results are
        stacked along a leading axis.
    """
    if num_actors() == 1:
        return tuple(task.in_turn() if isinstance(task, Copies) else task() for task in tasks)
    actor, done, job = jax.lax.axis_index(AXIS), [], 0
    for task in tasks:
        done.append(_on_actors(task, (actor - job) % num_actors()))
        job += task.number if isinstance(task, Copies) else 1
    # For each result, all actors but one have zeros, so a sum of the bits as integers gives the exact result.
    return apply_packed(tuple(done), lambda vector: jax.lax.psum(vector, AXIS), bits)


def _on_actors(task: Callable[[], PyTree] | Copies, place: jax.Array) -> PyTree:
    """Runs a task, or the copies, that belong to the actor at a place behind the first one's; zeros for all others."""
    if not isinstance(task, Copies):
        alone = without_collectives(task)
        return jax.lax.cond(place == 0, alone, lambda: _zeros(jax.eval_shape(alone)))

    def copy(index: jax.Array) -> PyTree:
        return without_collectives(functools.partial(task.task, index))()

    def add(turn: jax.Array, results: PyTree) -> PyTree:
        index = place + turn * actors
        return jax.tree.map(lambda each, one: each.at[index].set(one), results, copy(index))

    actors, nothing = num_actors(), _zeros(jax.eval_shape(copy, place), task.number)
    return jax.lax.fori_loop(0, (task.number - place + actors - 1) // actors, add, nothing)


def _zeros(shapes: PyTree, *leading: int) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.zeros((*leading, *leaf.shape), leaf.dtype), shapes)


def without_collectives(task: Callable[[], PyTree]) -> Callable[[], PyTree]:
    """Wraps a task so that its actor computes as if there were no others: sums and gathers return their arguments."""

    def alone() -> PyTree:
        token = _alone.set(True)
        try:
            return task()
        finally:
            _alone.reset(token)

    return alone


# Multiply-adds from which actors share a product with a network instead of each computing it: the gradient of so many
# takes milliseconds, a sum over two actors of a hundred thousand numbers takes 0.05.
MULTIPLY_ADDS_TO_SHARE = 2e7


def worth_sharing(multiply_adds: float) -> bool:
    """Inside a mapped function: returns whether actors should share a computation, at the price of a sum over them.

    Between processes, or accelerators, a sum takes as long as what it would save.

    Args:
      multiply_adds: those of a forward pass over all samples of the computation.
    """
    return num_actors() > 1 and on_cpu() and jax.process_count() == 1 and multiply_adds >= MULTIPLY_ADDS_TO_SHARE


class Work(NamedTuple):
    """Cost of a part of a task for `side_by_side`."""

    flops: float  # for the samples of all actors
    shared: bool  # whether actors that run the task together share the work; otherwise each does all of it


def worth_side_by_side(*tasks: Sequence[Work]) -> bool:
    """Inside a mapped function: returns whether tasks finish sooner side by side than one by one on all actors.

    Args:
      tasks: parts of each task, or of each copy of one, in the order in which `side_by_side` gets them.
    """
    alone = [sum(part.flops for part in task) for task in tasks]
    longest = max(sum(alone[actor :: num_actors()]) for actor in range(num_actors()))
    parts = [part for task in tasks for part in task]
    together = sum(part.flops / num_actors() if part.shared else part.flops for part in parts)
    return longest < together and longest <= MOST_FLOPS_ALONE


def num_actors() -> int:
    """Inside a mapped function: returns the number of actors that run it."""
    return 1 if _alone.get() else jax.lax.axis_size(AXIS)
