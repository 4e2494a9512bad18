"""Inverses of many small positive definite matrices."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

UNROLLED = 8  # up to this size the loop over pivots is unrolled, which XLA makes one operation of


class Inverse(NamedTuple):
    """What became of a matrix; where it was not definite, the inverse is of another one and only finite."""

    matrix: Float[Array, "... n n"]
    log_det: Float[Array, "..."]  # of the matrix, not of its inverse
    definite: Bool[Array, "..."]  # whether all pivots were positive


def inverse(matrix: Float[Array, "... n n"], floor: float = 1e-6) -> Inverse:
    """A^-1 of symmetric positive definite A, by sweeping its pivots (Goodnight 1979, section 3).

    Its pivots are those of the Cholesky factorisation, squared: all are positive if and only if A is positive definite.
    It is products and sums only, so that any number of matrices is one operation; LAPACK would take them one after
    another, and loads SciPy first.

    Args:
      matrix: symmetric; any leading axes.
      floor: a pivot counts as positive above this part of its diagonal element, and is no smaller where it does not.
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
        definite = definite & (pivot > least)  # false where it is NaN
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
