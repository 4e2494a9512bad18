"""Gradient steps on a flat vector of parameters, which actors that share gradients share as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from jaxtrpo.ops.minibatches import Parts, gradient_of_sum
from jaxtrpo.parallel.collectives import from_shares, num_actors, share_of, share_of_sum, sum_over_actors

Total = Callable[[Array], Array]  # the sum over all shares of a sum over one share
Point = tuple[Float[Array, " padded"], optax.OptState]  # parameters, and what the optimiser remembers


class Descent(NamedTuple):
    """Steps of an optimiser.

    Where actors compute a gradient together, each of them sums only its own share of it, keeps the optimiser's state of
    that share, and gathers the parameters of the others after the step.
    """

    start: Callable[[Float[Array, " parameter"], optax.OptState], Point]
    # (point, (parameters, rows) -> sum over these rows, rows, learning rate) -> next point; see `gradient_of_sum`
    step: Callable[[Point, Callable[[Array, Any], Array], Any, Float[Array, ""] | float], Point]
    params: Callable[[Point], Float[Array, " parameter"]]
    end: Callable[[Point], tuple[Float[Array, " parameter"], optax.OptState]]


def descent(optimizer: Callable[[Total], optax.GradientTransformation], parts: Parts, size: int) -> Descent:
    """Inside a mapped function: builds the steps.

    Args:
      optimizer: makes the optimiser. It must treat each parameter by itself; a sum over all parameters, such as that of
        a norm, is the argument of `optimizer` applied to the sum over those that the optimiser is given.
      parts: how gradients are computed.
      size: number of parameters.
    """
    missing = -size % num_actors() if parts.shared else 0
    transformation = optimizer(sum_over_actors if parts.shared else lambda value: value)
    own = share_of if parts.shared else lambda vector: vector

    def of_vectors(change: Callable[[Array], Array], state: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: change(leaf) if leaf.ndim else leaf, state)

    def padded(vector: Float[Array, " parameter"]) -> Float[Array, " padded"]:
        return jnp.pad(vector, (0, missing)) if missing else vector

    def start(params: Float[Array, " parameter"], state: optax.OptState) -> Point:
        return padded(params), of_vectors(lambda leaf: own(padded(leaf)), state)

    def step(point: Point, function: Callable, rows: Any, rate: Float[Array, ""] | float) -> Point:
        params, state = point
        gradient = gradient_of_sum(
            lambda params, rows: function(params[:size], rows), params, rows, parts, share_of_sum
        )
        updates, state = transformation.update(gradient, state, own(params))
        new = own(params) + rate * jnp.asarray(updates)
        return (from_shares(new) if parts.shared else new), state

    def params(point: Point) -> Float[Array, " parameter"]:
        return point[0][:size]

    def end(point: Point) -> tuple[Float[Array, " parameter"], optax.OptState]:
        state = point[1]
        if parts.shared:
            vectors, structure = jax.tree.flatten(state)
            whole = from_shares([leaf for leaf in vectors if leaf.ndim])
            state = jax.tree.unflatten(structure, [whole.pop(0)[:size] if leaf.ndim else leaf for leaf in vectors])
        return params(point), state

    return Descent(start, step, params, end)


def clip_by_norm(max_norm: float, total: Total) -> optax.GradientTransformation:
    """Scales a gradient, one flat vector or a share of it, down to a largest norm, like `optax.clip_by_global_norm`.

    Args:
      max_norm: largest norm of the whole gradient.
      total: sums over all shares.
    """

    def clip(updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None) -> tuple:
        gradient = jnp.asarray(updates)
        norm = jnp.sqrt(total(jnp.sum(jnp.square(gradient))))
        return jnp.where(norm < float(max_norm), gradient, gradient / norm * float(max_norm)), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), clip)
