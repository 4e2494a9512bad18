"""Loops over random minibatches: passes over rows without replacement, and draws with replacement; their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, UInt32

from jaxtrpo.ops.keys import numbered_key
from jaxtrpo.ops.permutation import shuffled
from jaxtrpo.parallel.collectives import AXIS, num_actors, on_cpu, sum_over_actors, worth_sharing

Carry = TypeVar("Carry")

# Gathering the rows of several minibatches at once takes half as long as gathering each in turn; more rows than this
# would not fit into the cache.
ROWS_AT_ONCE = 1_024

# Most multiply-adds, of a forward pass, whose gradient is computed at once on a CPU: derivatives need outputs of all
# layers, which are hundreds of kilobytes for an image of 84 x 84 pixels.
MULTIPLY_ADDS_AT_ONCE = 1.6e9


def pass_over_minibatches(
    step: Callable[[Carry, PyTree], Carry],
    carry: Carry,
    rows: PyTree,
    num_rows: Int[Array, ""],
    key: PRNGKeyArray | UInt32[Array, "2"],
    minibatch_size: int,
) -> Carry:
    """Applies carry = step(carry, minibatch) to disjoint minibatches of the first `num_rows` rows, in random order.

    Rows left over after the last full minibatch are skipped in this pass. If there are fewer rows than fit into one
    minibatch, the rows behind them fill it up, so those must have zero weight.

    Args:
      step: (carry, rows of one minibatch) -> carry.
      carry: initial carry.
      rows: arrays whose leading axis is the row.
      num_rows: number of leading rows that hold data; traced.
      key: PRNG key of the order.
      minibatch_size: rows per step.
    """
    capacity = len(jax.tree.leaves(rows)[0])
    size = min(minibatch_size, capacity)
    num_steps = jnp.maximum(num_rows // size, 1)
    at_once = max(min(ROWS_AT_ONCE, capacity) // size, 1)  # minibatches

    def take_group(number: Int[Array, ""], carry: Carry) -> Carry:
        # A permutation by sorting would take longer than the fit.
        chosen = shuffled(key, number * at_once * size + jnp.arange(at_once * size), num_rows)
        # The barrier keeps XLA from gathering each minibatch separately.
        fetched = jax.lax.optimization_barrier(jax.tree.map(lambda leaf: leaf[chosen], rows))

        return _take_steps(step, carry, fetched, jnp.minimum(at_once, num_steps - number * at_once), size)

    return jax.lax.fori_loop(0, -(-num_steps // at_once), take_group, carry)


class Parts(NamedTuple):
    """How the gradient of a minibatch is computed."""

    each: int = 1  # parts that an actor computes one after another
    shared: bool = False  # whether each actor computes its own parts, and not all of them


def parts_for(
    multiply_adds: Callable[[PyTree], float] | None, params: PyTree, steps: int, *, may_share: bool = True
) -> Parts:
    """Inside a mapped function: returns in how many parts the gradient of a minibatch is computed.

    Args:
      multiply_adds: parameters -> multiply-adds of a forward pass for one step; None for a network without
        convolutions, whose gradients are short.
      params: parameters of the network.
      steps: steps of a minibatch.
      may_share: whether all actors have the same minibatch.
    """
    if multiply_adds is None or not on_cpu():
        return Parts()
    whole = multiply_adds(params) * steps
    shared = may_share and worth_sharing(whole)
    return Parts(max(math.ceil(whole / (num_actors() if shared else 1) / MULTIPLY_ADDS_AT_ONCE), 1), shared)


def gradient_of_sum(
    function: Callable[[Float[Array, " parameter"], Any], Float[Array, ""]],
    params: Float[Array, " parameter"],
    rows: Any,
    parts: Parts,
    total: Callable[[PyTree], PyTree] = sum_over_actors,
) -> Float[Array, " some_parameters"]:
    """Inside a mapped function: computes the gradient of a sum over rows, in which each row is weighted.

    Args:
      function: (parameters, rows) -> sum over these rows; it is called with parts of them.
      params: parameters.
      rows: a named tuple of arrays whose leading axis is the row, among them `weight`; the same on all actors.
      parts: how to divide the rows. There are fewer parts if there are fewer rows.
      total: sums over actors that share a gradient, or this actor's share of that sum.
    """

    def together(found: tuple[Array, tuple[()]]) -> tuple[Array, tuple[()]]:
        return total(found[0]), ()

    return gradient_and_sum(lambda params, rows: (function(params, rows), ()), params, rows, parts, together)[0]


def gradient_and_sum(
    function: Callable[[Float[Array, " parameter"], Any], tuple[Float[Array, ""], PyTree]],
    params: Float[Array, " parameter"],
    rows: Any,
    parts: Parts,
    total: Callable[[PyTree], PyTree] = sum_over_actors,
) -> tuple[Float[Array, " some_parameters"], PyTree]:
    """Inside a mapped function: computes the gradient of a sum over rows, and other sums over them.

    Args:
      function: (parameters, rows) -> (sum over these rows, other sums), in which each row is weighted.
      params: parameters.
      rows: see `gradient_of_sum`.
      parts: see `gradient_of_sum`.
      total: sums both over actors that share a gradient.
    """
    gradient = jax.grad(function, has_aux=True)
    actors = num_actors() if parts.shared else 1
    if actors * parts.each == 1:
        return gradient(params, rows)
    number = len(rows.weight)
    own = -(-number // actors)  # rows of an actor
    size = -(-own // parts.each)  # rows of a part
    first = own * (jax.lax.axis_index(AXIS) if parts.shared else 0)

    def add(index: Int[Array, ""], sums: PyTree) -> PyTree:
        begin = first + index * size
        start = jnp.minimum(begin, number - size)
        part = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, size), rows)
        # A last part is as long as the others: rows that it has in common with them do not count.
        row = start + jnp.arange(size)
        counts = ((row >= begin) & (row < first + own)).reshape(-1, *[1] * (part.weight.ndim - 1))
        return jax.tree.map(jnp.add, sums, gradient(params, part._replace(weight=part.weight * counts)))

    nothing = jax.tree.map(lambda sums: jnp.zeros(sums.shape, sums.dtype), jax.eval_shape(gradient, params, rows))
    found = jax.lax.fori_loop(0, -(-own // size), add, nothing)
    return total(found) if parts.shared else found


class Drawn(NamedTuple):
    """Minibatches drawn from a replay buffer."""

    size: int  # rows
    at_once: int  # minibatches of a draw
    per_step: float  # gradient steps per environment step

    def number(self, new_steps: Int[Array, ""]) -> Float[Array, ""]:
        """Returns the number of gradient steps that new environment steps allow: a whole number, at least 1."""
        return jnp.maximum(jnp.round(self.per_step * new_steps), 1)


def minibatches_for(num_envs: int, minibatch_size: int, minibatch_per_env: float, replay_ratio: float) -> Drawn:
    """Returns what is drawn from a replay buffer: with many environments fewer, larger minibatches, as many rows.

    Args:
      num_envs: environments of all actors.
      minibatch_size: size with few environments.
      minibatch_per_env: least size per environment.
      replay_ratio: gradient steps per environment step with minibatches of `minibatch_size`.
    """
    size = max(minibatch_size, round(minibatch_per_env * num_envs))
    return Drawn(size, max(ROWS_AT_ONCE // minibatch_size, 1), replay_ratio * minibatch_size / size)


def over_drawn_minibatches(
    step: Callable[[Carry, PyTree], Carry],
    carry: Carry,
    draw: Callable[[Carry, UInt32[Array, "2"], int], PyTree],
    key: PRNGKeyArray | UInt32[Array, "2"],
    *,
    number: Int[Array, ""],
    size: int,
    at_once: int | None = None,
) -> Carry:
    """Applies carry = step(carry, minibatch) to `number` minibatches, each drawn with replacement.

    Args:
      step: (carry, rows of one minibatch) -> carry.
      carry: initial carry.
      draw: (carry, key, number of rows) -> rows, drawn with replacement. One call draws the rows of `at_once`
        minibatches and receives the carry as it is before the first of them.
      key: PRNG key of the draws; the keys that follow it are used as well (see `numbered_key`).
      number: number of minibatches; traced.
      size: rows per minibatch.
      at_once: minibatches of a draw; None: as many as `ROWS_AT_ONCE` allows.
    """
    at_once = max(ROWS_AT_ONCE // size, 1) if at_once is None else at_once

    def take_group(index: Int[Array, ""], carry: Carry) -> Carry:
        drawn = draw(carry, numbered_key(key, index), at_once * size)
        return _take_steps(step, carry, drawn, jnp.minimum(at_once, number - index * at_once), size)

    return jax.lax.fori_loop(0, -(-number // at_once), take_group, carry)


def _take_steps(
    step: Callable[[Carry, PyTree], Carry], carry: Carry, rows: PyTree, number: Int[Array, ""], size: int
) -> Carry:
    """Applies carry = step(carry, minibatch) to the first `number` minibatches of the rows."""

    def one(index: Int[Array, ""], carry: Carry) -> Carry:
        return step(carry, jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, index * size, size), rows))

    return jax.lax.fori_loop(0, number, one, carry)
