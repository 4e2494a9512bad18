"""Inverses of many small positive definite matrices."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

UNROLLED = 8  # up to this size the loop over pivots is unrolled, which XLA fuses into one operation


class Inverse(NamedTuple):
    """Result of `inverse`. If the matrix was not positive definite, its values are finite but meaningless."""

    matrix: Float[Array, "... n n"]  # the inverse
    log_det: Float[Array, "..."]  # of the original matrix, not of its inverse
    definite: Bool[Array, "..."]  # whether all pivots were positive


def inverse(matrix: Float[Array, "... n n"], floor: float = 1e-6) -> Inverse:
    """Computes A^-1 of symmetric positive definite A by sweeping its pivots (Goodnight 1979, section 3).

    The pivots are the squares of those of the Cholesky factorisation: all are positive if and only if A is positive
    definite. Sweeping needs only products and sums, so any number of matrices is inverted in one operation; LAPACK
    would take them one after another, and requires loading SciPy.

    Args:
      matrix: symmetric matrices with any leading axes.
      floor: a pivot counts as positive if it exceeds this fraction of its diagonal element; smaller pivots are raised
        to that value.
    """
    n = matrix.shape[-1]
    diagonal = jnp.abs(jnp.diagonal(matrix, axis1=-2, axis2=-1))
    tiny = jnp.finfo(matrix.dtype).tiny

    def sweep(k: Int[Array, ""] | int, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        swept, log_det, definite = carry
        here = jnp.arange(n) == k
        column, row = swept[..., :, k], swept[..., k, :]
        least = floor * diagonal[..., k] + tiny
        pivot = row[..., k]
        definite = definite & (pivot > least)  # False for NaN
        pivot = jnp.maximum(pivot, least)[..., None]
        row = row / pivot
        rest = swept - column[..., :, None] * row[..., None, :]
        swept = jnp.where(here[:, None], row[..., None, :], rest)
        swept = jnp.where(here[None, :], -column[..., :, None] / pivot[..., None], swept)
        swept = jnp.where(here[:, None] & here[None, :], 1 / pivot[..., None], swept)
        return swept, log_det + jnp.log(pivot[..., 0]), definite

    batch = matrix.shape[:-2]
    start = matrix, jnp.zeros(batch, matrix.dtype), jnp.ones(batch, bool)
    swept, log_det, definite = jax.lax.fori_loop(0, n, sweep, start, unroll=n <= UNROLLED)
    return Inverse((swept + swept.mT) / 2, log_det, definite)
