"""The interface of networks with memory, and the sequences that they learn from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from jaxtrpo.parallel.collectives import gather_envs


class Sequences(NamedTuple):
    """Consecutive observations of environments, the input of a network with memory.

    Stretches of a batch have another leading axis, which counts them.
    """

    obs: Any  # [..., time, env, obs], normalised; or `Masked`
    first: Bool[Array, "... time env"]  # an episode begins with this step, so what was carried is forgotten
    carry: PyTree  # before the first step, as it was when acting; leaves are [..., env, ...]


class Recurrence(NamedTuple):
    """Functions of a network with memory.

    What it remembers of an episode is its *carry*, a pytree of arrays with the leading axis `env`. A step forgets the
    carry where an episode begins. In `step` and `unroll`, `state` holds the parameters of a policy, or the state of a
    critic.
    """

    start: Callable[[int], PyTree]  # number of environments -> carry at the beginning of an episode
    # (state, carry, normalised obs [env, obs], or `Masked`, first [env]) -> (output [env], carry)
    step: Callable[[PyTree, PyTree, Any, Bool[Array, " env"]], tuple[Any, PyTree]]
    # (state, sequences) -> (outputs [time, env], carries after each step [time, env])
    unroll: Callable[[PyTree, Sequences], tuple[Any, PyTree]]
    bptt_steps: int  # steps of an environment in a stretch, through which gradients are propagated back


def initial_carry(recurrence: Recurrence | None, num_envs: int) -> PyTree:
    """Returns what a network carries at the beginning of an episode; () without memory."""
    return () if recurrence is None else recurrence.start(num_envs)


def single_step(
    unroll: Callable[[PyTree, Sequences], tuple[Any, PyTree]],
) -> Callable[[PyTree, PyTree, Any, Bool[Array, " env"]], tuple[Any, PyTree]]:
    """Returns `Recurrence.step`, a sequence of a single step."""

    def step(state: PyTree, carry: PyTree, obs: Any, first: Bool[Array, " env"]) -> tuple[Any, PyTree]:
        obs, first = jax.tree.map(lambda leaf: leaf[None], (obs, first))
        return entry(unroll(state, Sequences(obs, first, carry)), 0)

    return step


def num_stretches(steps: Any, bptt_steps: int) -> Any:
    """Returns the number of stretches that hold a number of consecutive steps; the last may be shorter."""
    return -(-steps // bptt_steps)


def in_stretches(leaf: Array, bptt_steps: int) -> Array:
    """Rearranges [segment, time, env, ...] to [stretch, time, env, ...], padded with zeros at the end."""
    steps = leaf.reshape(-1, *leaf.shape[2:])
    number = num_stretches(len(steps), bptt_steps)
    padding = [(0, number * bptt_steps - len(steps)), *[(0, 0)] * (steps.ndim - 1)]
    return jnp.pad(steps, padding).reshape(number, bptt_steps, *steps.shape[1:])


def entry(inputs: PyTree, index: Any) -> PyTree:
    """Returns one entry along the leading axis of each leaf, such as a segment of a batch, or a stretch."""
    return jax.tree.map(lambda leaf: leaf[index], inputs)


def one_axis_of_steps(outputs: PyTree) -> PyTree:
    """Merges the two leading axes of each leaf, such as time and env."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), outputs)


def gather_inputs(samples: PyTree) -> PyTree:
    """Gathers samples [segment, time, env, ...] of all actors, which may contain `Sequences`."""

    def arrange_carries(arrange: Callable[[Array], Array], samples: PyTree) -> PyTree:
        def each(leaf: Any) -> Any:
            return leaf._replace(carry=jax.tree.map(arrange, leaf.carry)) if isinstance(leaf, Sequences) else leaf

        return jax.tree.map(each, samples, is_leaf=_is_sequences)

    # A carry gets the axis of time that it lacks, so that everything is gathered in one collective.
    gathered = gather_envs(arrange_carries(lambda part: part[:, None], samples), axis=2)
    return arrange_carries(lambda part: part[:, 0], gathered)


def to_rows(samples: PyTree, *, sequences: bool) -> PyTree:
    """Converts samples [segment, time, env, ...] to rows, from which minibatches can be drawn.

    Args:
      samples: arrays, and `Sequences` if they are to be learned in sequence.
      sequences: whether a row is a stretch of one environment, [row, time, ...]; otherwise it is one step, [row, ...].
    """

    def steps(leaf: Array) -> Array:
        if sequences:
            return jnp.swapaxes(leaf, 1, 2).reshape(-1, leaf.shape[1], *leaf.shape[3:])
        return leaf.reshape(-1, *leaf.shape[3:])

    def each(leaf: Any) -> Any:
        if not isinstance(leaf, Sequences):
            return steps(leaf)
        return Sequences(jax.tree.map(steps, leaf.obs), steps(leaf.first), one_axis_of_steps(leaf.carry))

    return jax.tree.map(each, samples, is_leaf=_is_sequences)


def rows_of(steps: int, weight: Float[Array, "row ..."]) -> int:
    """Returns how many rows like those of `weight` make a number of steps; at least 1."""
    return max(steps // (weight.size // len(weight)), 1)


def from_rows(rows: PyTree, *, sequences: bool) -> PyTree:
    """Converts rows of sequences to the layout of networks, [time, row, ...]; leaves rows of steps as they are."""
    if not sequences:
        return rows

    def each(leaf: Any) -> Any:
        if not isinstance(leaf, Sequences):
            return jnp.swapaxes(leaf, 0, 1)
        obs, first = jax.tree.map(lambda part: jnp.swapaxes(part, 0, 1), (leaf.obs, leaf.first))
        return Sequences(obs, first, leaf.carry)

    return jax.tree.map(each, rows, is_leaf=_is_sequences)


def _is_sequences(value: Any) -> bool:
    return isinstance(value, Sequences)
