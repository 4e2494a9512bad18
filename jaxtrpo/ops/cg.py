"""Conjugate gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree
from optax import tree


class CGInfo(NamedTuple):
    """What one conjugate-gradient solve did."""

    iterations: Int[Array, ""]
    residual_norm: Float[Array, ""]  # Euclidean norm of b - A x, as the recursion carries it
    curvature: Float[Array, ""]  # x^T A x


class _State(NamedTuple):
    x: PyTree
    residual: PyTree
    direction: PyTree
    squared_residual: Float[Array, ""]
    iterations: Int[Array, ""]
    usable: jax.Array  # False once a direction had no positive curvature


def conjugate_gradient(
    matvec: Callable[[PyTree], PyTree],
    b: PyTree,
    *,
    max_iterations: int,
    tolerance: float = 1e-5,
    product_with_b: PyTree | None = None,
    start: PyTree | None = None,
) -> tuple[PyTree, CGInfo]:
    """Solves A x = b for a symmetric positive definite A known only through v -> A v.

    Starts from x = 0 if nothing else is given, so a solve that stops early returns the best step inside the Krylov
    space so far, which is what a trust region wants (Nocedal & Wright 2006, section 7.1). A direction along which A is
    not positive (or not finite) ends the solve before it is used.

    Args:
      matvec: v -> A v on pytrees shaped like `b`.
      b: right-hand side.
      max_iterations: at most this many products with A.
      tolerance: stop when the residual norm falls below this part of the norm of `b`.
      product_with_b: A b, if it is known; it then counts as the first product; not needed with a `start`.
      start: x to start from, such as the solution of a problem that is nearly the same; takes one more product.

    Returns:
      x, shaped like `b`, and what the solve did.
    """
    squared_norm = jnp.asarray(tree.vdot(b, b))

    def unfinished(state: _State) -> jax.Array:
        large = state.squared_residual > tolerance**2 * squared_norm
        return (state.iterations < max_iterations) & large & state.usable

    def advance(state: _State, product: PyTree) -> _State:
        curvature = jnp.asarray(tree.vdot(state.direction, product))
        usable = curvature > 0
        alpha = jnp.where(usable, state.squared_residual / curvature, 0.0)
        x = tree.add_scale(state.x, alpha, state.direction)
        residual = jax.tree.map(lambda r, p: jnp.where(usable, r - alpha * p, r), state.residual, product)
        squared_residual = jnp.asarray(tree.vdot(residual, residual))
        beta = squared_residual / state.squared_residual
        direction = tree.add_scale(residual, beta, state.direction)
        return _State(x, residual, direction, squared_residual, state.iterations + 1, usable)

    def state_at(x: PyTree, residual: PyTree) -> _State:
        squared_residual = jnp.asarray(tree.vdot(residual, residual))
        return _State(x, residual, residual, squared_residual, jnp.int32(0), jnp.bool_(True))

    if start is None:
        first = state_at(tree.zeros_like(b), b)
        if product_with_b is not None:
            first = tree.where(unfinished(first), advance(first, product_with_b), first)
    else:
        first = state_at(start, tree.sub(b, matvec(start)))
    last = jax.lax.while_loop(unfinished, lambda state: advance(state, matvec(state.direction)), first)
    curvature = jnp.asarray(tree.vdot(last.x, tree.sub(b, last.residual)))
    return last.x, CGInfo(last.iterations, jnp.sqrt(last.squared_residual), curvature)
