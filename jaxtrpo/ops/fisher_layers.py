"""Network layers for functions that are linearised once and then multiplied many times (`fisher_vector_product`).

They support neither `vmap` nor second derivatives. In a program that trains several runs at once they fall back to the
ordinary operations, which can be mapped.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import linear_call
from jaxtyping import Array, Float

from jaxtrpo.parallel.collectives import trainings_are_batched

# With fewer columns, transposing the result is faster than transposing the inputs.
NARROW = 16


@jax.custom_jvp
def matmul(x: Float[Array, "rows inputs"], kernel: Float[Array, "inputs outputs"]) -> Float[Array, "rows outputs"]:
    """Computes x @ kernel, with a faster transposed product on CPUs.

    The cotangent of the kernel, x^T times the cotangent of the output, sums over rows. XLA's CPU backend takes twice as
    long for it as for the forward product, and seven times as long if the output has few columns. x^T is therefore laid
    out once, when the function is linearised, and reused by all products.
    """
    return x @ kernel


@matmul.defjvp
def _matmul_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    x, kernel = primals
    x_tangent, kernel_tangent = tangents
    if trainings_are_batched():
        return x @ kernel, x @ kernel_tangent + x_tangent @ kernel
    kept = x, jax.lax.optimization_barrier(x.T)
    return x @ kernel, linear_call(_forward, _backward, kept, kernel_tangent) + x_tangent @ kernel


def _forward(kept: tuple[Array, Array], kernel: Array) -> Array:
    x, _ = kept
    return x @ kernel


def _backward(kept: tuple[Array, Array], cotangent: Array) -> Array:
    x, x_transposed = kept
    if cotangent.shape[-1] < NARROW:
        # The barrier keeps XLA from transposing the inputs instead of the result.
        return jax.lax.optimization_barrier(cotangent.T @ x).T
    return x_transposed @ cotangent


def dot_general(
    x: Float[Array, "rows inputs"], kernel: Float[Array, "inputs outputs"], *_: Any, **__: Any
) -> Float[Array, "rows outputs"]:
    """`matmul` with the signature that `flax.linen.Dense` expects of a dot_general."""
    return matmul(x, kernel)


@jax.custom_jvp
def tanh(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Computes tanh x. Products derive the slope from its value, which is stored anyway, and so read less memory."""
    return jnp.tanh(x)


@tanh.defjvp
def _tanh_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    value = jnp.tanh(primals[0])
    if trainings_are_batched():
        return value, _tanh_slope(value, tangents[0])
    return value, linear_call(_tanh_slope, _tanh_slope, value, tangents[0])


def _tanh_slope(value: Array, tangent: Array) -> Array:
    return (1 - value**2) * tangent
