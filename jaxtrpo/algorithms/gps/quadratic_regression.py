"""Least squares with quadratic features, from sums that can be collected piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

NEGLIGIBLE = 1e-12  # mean square of a feature of numbers whose usual size is 1


class Sums(NamedTuple):
    """What the rows seen so far say of a regression."""

    outer: Float[Array, "feature feature"]  # sum of weight * features features^T
    cross: Float[Array, "feature output"]  # sum of weight * features output^T
    count: Float[Array, ""]  # sum of weights


class Quadratic(NamedTuple):
    """y = constant + slope z + 1/2 z^T curvature z, for each output."""

    constant: Float[Array, " output"]
    slope: Float[Array, "output z"]
    curvature: Float[Array, "output z z"]  # symmetric

    def __call__(self, z: Float[Array, "... z"]) -> Float[Array, "... output"]:
        """The outputs of some rows."""
        curved = jnp.einsum("oij,...i,...j->...o", self.curvature, z, z)
        return self.constant + z @ self.slope.T + 0.5 * curved

    def slope_at(self, z: Float[Array, "... z"]) -> Float[Array, "... output z"]:
        """The derivative of the outputs in z."""
        return self.slope + jnp.einsum("oij,...j->...oi", self.curvature, z)


def num_features(size: int) -> int:
    """Features of rows of `size` numbers."""
    return 1 + size + size * (size + 1) // 2


def features(z: Float[Array, "row z"]) -> Float[Array, "row feature"]:
    """[1, z, z_i z_j for i <= j]."""
    first, second = np.triu_indices(z.shape[-1])
    return jnp.concatenate([jnp.ones_like(z[:, :1]), z, z[:, first] * z[:, second]], axis=-1)


def no_sums(size: int, outputs: int) -> Sums:
    """Before the first row."""
    number = num_features(size)
    return Sums(jnp.zeros((number, number)), jnp.zeros((number, outputs)), jnp.zeros(()))


def sums_of(z: Float[Array, "row z"], y: Float[Array, "row output"], weight: Float[Array, " row"]) -> Sums:
    """What some rows add."""
    x = features(z)
    weighted = weight[:, None] * x
    return Sums(weighted.T @ x, weighted.T @ y, jnp.sum(weight))


def fit(sums: Sums, size: int, ridge: float) -> Quadratic:
    """Ridge regression on features that have root mean square 1.

    Args:
      sums: of the rows.
      size: numbers in z.
      ridge: added to the diagonal of the mean outer product of the scaled features, but for the constant one. With too
        little of it the solution may be NaN where features depend on each other.
    """
    count = jnp.maximum(sums.count, 1.0)
    mean_square = jnp.diagonal(sums.outer) / count
    # What never varied has no scale: its coefficient would be rounding, enlarged without bounds.
    varied = mean_square > NEGLIGIBLE
    scale = jnp.where(varied, jax.lax.rsqrt(jnp.where(varied, mean_square, 1.0)), 0.0)
    outer = scale[:, None] * sums.outer / count * scale
    penalty = jnp.where(scale > 0, ridge, 1.0).at[0].set(jnp.finfo(outer.dtype).eps)
    solved = jax.scipy.linalg.solve(outer + jnp.diag(penalty), scale[:, None] * sums.cross / count, assume_a="pos")
    return _unpacked(scale[:, None] * solved, size)


class Validated(NamedTuple):
    """A fit whose penalties were chosen by rows that it had not seen."""

    quadratic: Quadratic
    unexplained: Float[Array, " output"]  # mean squared error on such rows, over the variance of the output
    ridge: Float[Array, " output"]


def validated_fit(
    known: Sums,
    halves: tuple[Sums, Sums],
    squared_error: Callable[[Quadratic, int], Float[Array, " output"]],
    variance: Float[Array, " output"],
    size: int,
    ridges: Sequence[float],
) -> Validated:
    """Ridge regression with the penalty of each output that predicts best: cross-validation with two folds.

    Args:
      known: sums of rows of before, that both fits have.
      halves: of the new rows.
      squared_error: (fit, half) -> mean squared error of each output on the rows of that half.
      variance: of the outputs.
      size: numbers in z.
      ridges: to choose from, in order; the last is taken where none leaves an error that is finite.
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
    """Of the rows of both."""
    return jax.tree.map(jnp.add, a, b)


def _unpacked(coefficients: Float[Array, "feature output"], size: int) -> Quadratic:
    first, second = np.triu_indices(size)
    upper = jnp.zeros((coefficients.shape[1], size, size), coefficients.dtype)
    upper = upper.at[:, first, second].set(coefficients[1 + size :].T)
    return Quadratic(coefficients[0], coefficients[1 : 1 + size].T, upper + upper.mT)


def concave(curvature: Float[Array, "z z"]) -> Float[Array, "z z"]:
    """The nearest symmetric matrix without positive eigenvalues, in the Frobenius norm (Higham 1988, theorem 2.1)."""
    values, vectors = jnp.linalg.eigh((curvature + curvature.T) / 2)
    return (vectors * jnp.minimum(values, 0.0)) @ vectors.T
