"""Operations of a network that is linearised once and then multiplied with often, as by `fisher_vector_product`.

They cannot be mapped by `vmap`, but where several trainings are one program, in which they are nothing special; nor can
they be differentiated a second time.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import linear_call
from jaxtyping import Array, Float

from jaxtrpo.parallel.collectives import are_many

# With fewer columns the turned result takes less time than turned inputs.
NARROW = 16


@jax.custom_jvp
def matmul(x: Float[Array, "rows inputs"], kernel: Float[Array, "inputs outputs"]) -> Float[Array, "rows outputs"]:
    """x @ kernel.

    What comes back to the kernel, x^T times a cotangent, sums over the rows of both. XLA's CPU backend takes twice as
    long for that as for the product forward, and seven times as long if it has few columns. So x^T is laid out once,
    where the function is linearised, and all products use it.
    """
    return x @ kernel


@matmul.defjvp
def _matmul_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    x, kernel = primals
    x_tangent, kernel_tangent = tangents
    if are_many():
        return x @ kernel, x @ kernel_tangent + x_tangent @ kernel
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


def dot_general(
    x: Float[Array, "rows inputs"], kernel: Float[Array, "inputs outputs"], *_: Any, **__: Any
) -> Float[Array, "rows outputs"]:
    """`matmul` with the arguments that `flax.linen.Dense` gives."""
    return matmul(x, kernel)


@jax.custom_jvp
def tanh(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """tanh x. Products read its value, which they need anyway, instead of its derivative: that is less memory."""
    return jnp.tanh(x)


@tanh.defjvp
def _tanh_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    value = jnp.tanh(primals[0])
    if are_many():
        return value, _tanh_slope(value, tangents[0])
    return value, linear_call(_tanh_slope, _tanh_slope, value, tangents[0])


def _tanh_slope(value: Array, tangent: Array) -> Array:
    return (1 - value**2) * tangent
