"""Weights of the natural directions, from the slopes that later, independent batches measure along them."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxtrpo.ops.cg import conjugate_gradient
from jaxtrpo.ops.tree import all_finite

BATCHES = 100  # batches that measured slopes are averaged over, with older ones fading; with 20, noise decides
STEPS = 5  # policy steps whose directions are evaluated together; the slope along a single one is mostly noise
DAMPING = 0.05  # added to the inner products, which are estimates
WARMUP_BATCHES = 10  # batches during which all directions get equal weight, for lack of evidence


class Evidence(NamedTuple):
    """Evidence about the directions. The first, of the batch's score function, is never dropped."""

    directions: Float[Array, "direction parameter"]  # mean over the last steps, each of length one in the Fisher norm
    slope: Float[Array, " direction"]  # mean slope measured along them by later batches, standardised advantages
    square: Float[Array, " direction"]  # mean squared slope
    weight_square: Float[Array, ""]  # sum of squared weights in the means; its inverse is the effective sample size
    batches: Int[Array, ""]  # number of batches so far


def no_evidence(directions: int, parameters: int) -> Evidence:
    """Returns the state before the first batch."""
    nothing = jnp.zeros(directions)
    return Evidence(jnp.zeros((directions, parameters)), nothing, nothing, jnp.float32(1), jnp.int32(0))


def add_slopes(evidence: Evidence, gradient: Float[Array, " parameter"]) -> Evidence:
    """Updates the mean slopes with those that a new batch measures along previous directions.

    The gradient of a batch is unbiased, and so is its slope along any direction that is independent of the batch. Along
    directions computed from the batch itself, the slope would be biased by its noise.
    """
    rate = 1 / jnp.clip(evidence.batches, 1, BATCHES)
    found = evidence.directions @ gradient
    measured = (evidence.batches > 0) & all_finite(found)  # there is a previous direction, and the slopes are finite
    return evidence._replace(
        slope=jnp.where(measured, (1 - rate) * evidence.slope + rate * found, evidence.slope),
        square=jnp.where(measured, (1 - rate) * evidence.square + rate * found**2, evidence.square),
        weight_square=jnp.where(measured, (1 - rate) ** 2 * evidence.weight_square + rate**2, evidence.weight_square),
        batches=evidence.batches + 1,
    )


def add_directions(evidence: Evidence, directions: Float[Array, "direction parameter"]) -> Evidence:
    """Updates the mean directions with those of a new batch, each of length one in the Fisher norm and finite."""
    rate = 1 / STEPS
    usable = jnp.isfinite(directions).all(axis=1, keepdims=True)
    return evidence._replace(
        directions=jnp.where(usable, (1 - rate) * evidence.directions + rate * directions, evidence.directions)
    )


def standard_error(evidence: Evidence) -> Float[Array, " direction"]:
    """Returns the standard error of the mean slopes, from their variance between batches."""
    variance = jnp.maximum(evidence.square - evidence.slope**2, 0.0)
    number = 1 / evidence.weight_square
    return jnp.sqrt(variance / jnp.maximum(number - 1, 1.0))


def weights(evidence: Evidence, gram: Float[Array, "direction direction"]) -> Float[Array, " direction"]:
    """Computes the weights of the directions, which are non-negative and sum to one.

    The direction d = sum w_i d_i with the largest slope for its length solves G w = slope, where G holds the inner
    products of the directions. Each slope is multiplied by max(0, 1 - (error / slope)^2), the positive-part estimate of
    James & Stein (1961), so a direction without evidence gets no weight. The slope of the first direction, of the
    batch's score function, counts at least as much as its standard error, because that gradient is unbiased however
    weak the evidence; if no other direction has weight, the step is that of TRPO.

    Args:
      evidence: slopes measured along the directions so far.
      gram: inner products of this batch's directions in the Fisher norm.
    """
    error = standard_error(evidence)
    slope = jnp.maximum(evidence.slope, 0.0)
    left = jnp.maximum(1 - (error / jnp.where(slope > 0, slope, 1.0)) ** 2, 0.0)
    believed = slope * left
    believed = believed.at[0].max(error[0])
    number, shown = len(gram), believed > 0
    # Directions without evidence are excluded first; else one could get weight only for opposing another.
    inner = jnp.where(shown[:, None] & shown, gram, 0.0)
    solved, _ = conjugate_gradient(lambda w: inner @ w + DAMPING * w, believed, max_iterations=number)
    found = jnp.maximum(solved, 0.0)
    total = jnp.sum(found)
    only_first = jnp.zeros(number).at[0].set(1.0)
    earned = jnp.where(total > 0, found / jnp.where(total > 0, total, 1.0), only_first)
    return jnp.where(evidence.batches <= WARMUP_BATCHES, jnp.full(number, 1 / number), earned)
