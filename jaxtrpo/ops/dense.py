"""A matrix product whose derivative is made to be taken many times."""

from __future__ import annotations

from typing import Any

import jax
from jax.custom_derivatives import linear_call
from jaxtyping import Array, Float

# With fewer columns the turned result takes less time than turned inputs.
NARROW = 16


@jax.custom_jvp
def matmul_for_products(x: Float[Array, "rows inputs"], kernel: Float[Array, "inputs outputs"]) -> Array:
    """x @ kernel, for a function that is linearised once and transposed many times, as by `fisher_vector_product`.

    What comes back to the kernel, x^T times a cotangent, sums over the rows of both. XLA's CPU backend takes twice as
    long for that as for the product forward, and seven times as long if it has few columns. So x^T is laid out once,
    where the function is linearised, and all products use it.

    It cannot be mapped by `vmap`, nor differentiated a second time.
    """
    return x @ kernel


@matmul_for_products.defjvp
def _matmul_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    x, kernel = primals
    x_tangent, kernel_tangent = tangents
    kept = x, jax.lax.optimization_barrier(x.T)
    return x @ kernel, linear_call(_forward, _backward, kept, kernel_tangent) + x_tangent @ kernel


def _forward(kept: tuple[Array, Array], kernel: Array) -> Array:
    x, _ = kept
    return x @ kernel


def _backward(kept: tuple[Array, Array], cotangent: Array) -> Array:
    x, x_transposed = kept
    if cotangent.shape[-1] < NARROW:
        # The barrier keeps XLA from turning the inputs instead of the result.
        return jax.lax.optimization_barrier(cotangent.T @ x).T
    return x_transposed @ cotangent


def dot_general_for_products(x: Array, kernel: Array, *_: Any, **__: Any) -> Array:
    """`matmul_for_products` with the arguments that `flax.linen.Dense` gives its `dot_general`."""
    return matmul_for_products(x, kernel)
