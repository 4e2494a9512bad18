"""Least squares with quadratic features, from sufficient statistics that can be summed over batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

NEGLIGIBLE = 1e-12  # a feature with a smaller mean square is constant zero up to rounding; inputs are of order 1


class Sums(NamedTuple):
    """Sufficient statistics of a regression."""

    outer: Float[Array, "feature feature"]  # sum of weight * features features^T
    cross: Float[Array, "feature output"]  # sum of weight * features output^T
    count: Float[Array, ""]  # sum of weights


class Quadratic(NamedTuple):
    """Quadratic model of several outputs, y = constant + slope z + 1/2 z^T curvature z."""

    constant: Float[Array, " output"]
    slope: Float[Array, "output z"]
    curvature: Float[Array, "output z z"]  # symmetric

    def __call__(self, z: Float[Array, "... z"]) -> Float[Array, "... output"]:
        """Predicts the outputs for each row of z."""
        curved = jnp.einsum("oij,...i,...j->...o", self.curvature, z, z)
        return self.constant + z @ self.slope.T + 0.5 * curved

    def slope_at(self, z: Float[Array, "... z"]) -> Float[Array, "... output z"]:
        """Computes the derivatives of the outputs with respect to z."""
        return self.slope + jnp.einsum("oij,...j->...oi", self.curvature, z)


def num_features(size: int) -> int:
    """Returns the number of features for rows of length `size`."""
    return 1 + size + size * (size + 1) // 2


def features(z: Float[Array, "row z"]) -> Float[Array, "row feature"]:
    """Returns the features [1, z, z_i z_j for i <= j]."""
    first, second = np.triu_indices(z.shape[-1])
    return jnp.concatenate([jnp.ones_like(z[:, :1]), z, z[:, first] * z[:, second]], axis=-1)


def no_sums(size: int, outputs: int) -> Sums:
    """Returns the sums before the first row."""
    number = num_features(size)
    return Sums(jnp.zeros((number, number)), jnp.zeros((number, outputs)), jnp.zeros(()))


def sums_of(z: Float[Array, "row z"], y: Float[Array, "row output"], weight: Float[Array, " row"]) -> Sums:
    """Computes the sums of a batch of rows."""
    x = features(z)
    weighted = weight[:, None] * x
    return Sums(weighted.T @ x, weighted.T @ y, jnp.sum(weight))


def fit(sums: Sums, size: int, ridge: float) -> Quadratic:
    """Solves ridge regression on features scaled to root mean square 1.

    Args:
      sums: sums of the rows.
      size: length of z.
      ridge: penalty, added to the diagonal of the mean outer product of the scaled features except the constant one. If
        it is too small and features are linearly dependent, the solution may be NaN.
    """
    count = jnp.maximum(sums.count, 1.0)
    mean_square = jnp.diagonal(sums.outer) / count
    # A feature that never varied has no scale; its coefficient would be amplified rounding error.
    varied = mean_square > NEGLIGIBLE
    scale = jnp.where(varied, jax.lax.rsqrt(jnp.where(varied, mean_square, 1.0)), 0.0)
    outer = scale[:, None] * sums.outer / count * scale
    penalty = jnp.where(scale > 0, ridge, 1.0).at[0].set(jnp.finfo(outer.dtype).eps)
    solved = jax.scipy.linalg.solve(outer + jnp.diag(penalty), scale[:, None] * sums.cross / count, assume_a="pos")
    return _unpacked(scale[:, None] * solved, size)


class Validated(NamedTuple):
    """A fit whose penalties were chosen by cross-validation."""

    quadratic: Quadratic
    unexplained: Float[Array, " output"]  # fraction of variance unexplained on held-out rows
    ridge: Float[Array, " output"]


def validated_fit(
    known: Sums,
    halves: tuple[Sums, Sums],
    squared_error: Callable[[Quadratic, int], Float[Array, " output"]],
    variance: Float[Array, " output"],
    size: int,
    ridges: Sequence[float],
) -> Validated:
    """Solves ridge regression with the penalty of each output chosen by two-fold cross-validation.

    Args:
      known: sums of earlier rows, included in both fits.
      halves: sums of the two halves of the new rows.
      squared_error: (fit, half) -> mean squared error of each output on the rows of that half.
      variance: variance of the outputs.
      size: length of z.
      ridges: candidate penalties in ascending order; the last is used if no candidate has a finite error.
    """
    errors = [
        sum(squared_error(fit(add(known, halves[1 - half]), size, ridge), half) / 2 for half in (0, 1))
        for ridge in ridges
    ]
    errors = jnp.stack([jnp.where(jnp.isfinite(error), error, jnp.inf) for error in errors])
    best = jnp.where(jnp.any(jnp.isfinite(errors), axis=0), jnp.argmin(errors, axis=0), len(ridges) - 1)
    whole = add(known, add(*halves))
    fits = [fit(whole, size, ridge) for ridge in ridges]
    chosen = jax.tree.map(lambda *each: jnp.stack(each)[best, jnp.arange(len(best))], *fits)
    least = jnp.min(errors, axis=0)
    return Validated(chosen, jnp.where(variance > 0, least / variance, 0.0), jnp.asarray(ridges)[best])


def add(a: Sums, b: Sums) -> Sums:
    """Adds the sums of two sets of rows."""
    return jax.tree.map(jnp.add, a, b)


def _unpacked(coefficients: Float[Array, "feature output"], size: int) -> Quadratic:
    first, second = np.triu_indices(size)
    upper = jnp.zeros((coefficients.shape[1], size, size), coefficients.dtype)
    upper = upper.at[:, first, second].set(coefficients[1 + size :].T)
    return Quadratic(coefficients[0], coefficients[1 : 1 + size].T, upper + upper.mT)


def concave(curvature: Float[Array, "z z"]) -> Float[Array, "z z"]:
    """Returns the nearest negative semi-definite matrix in the Frobenius norm (Higham 1988, theorem 2.1)."""
    values, vectors = jnp.linalg.eigh((curvature + curvature.T) / 2)
    return (vectors * jnp.minimum(values, 0.0)) @ vectors.T
