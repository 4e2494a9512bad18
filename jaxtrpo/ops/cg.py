"""The conjugate gradient method on pytrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree
from optax import tree


class CGInfo(NamedTuple):
    """Diagnostics of one conjugate-gradient solve."""

    iterations: Int[Array, ""]
    residual_norm: Float[Array, ""]  # Euclidean norm of b - A x, from the recursion
    curvature: Float[Array, ""]  # x^T A x


class _State(NamedTuple):
    x: PyTree
    residual: PyTree
    direction: PyTree
    squared_residual: Float[Array, ""]
    iterations: Int[Array, ""]
    usable: jax.Array  # False once a direction with non-positive curvature was met


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

    Without a `start` it begins at x = 0, so a solve that stops early returns the best point in the Krylov space so far,
    which suits trust-region methods (Nocedal & Wright 2006, section 7.1). The solve ends before using a direction whose
    curvature is not positive or not finite.

    Args:
      matvec: v -> A v on pytrees shaped like `b`.
      b: right-hand side.
      max_iterations: largest number of products with A.
      tolerance: stop when the residual norm falls below this fraction of the norm of `b`.
      product_with_b: A b, if already known; it counts as the first product and is ignored if there is a `start`.
      start: initial x, such as the solution of a similar problem; costs one extra product.

    Returns:
      x, shaped like `b`, and diagnostics.
    """
    squared_norm = jnp.asarray(tree.vdot(b, b))

    def unfinished(state: _State) -> jax.Array:
        large = state.squared_residual > tolerance**2 * squared_norm
        return (state.iterations < max_iterations) & large & state.usable

    def advance(state: _State, product: PyTree) -> _State:
        curvature = jnp.asarray(tree.vdot(state.direction, product))
        usable = (curvature > 0) & jnp.isfinite(curvature)
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
