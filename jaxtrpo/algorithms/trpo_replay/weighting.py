"""The judge: how much of each direction to follow, by what batches that did not choose them say."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxtrpo.ops.cg import conjugate_gradient
from jaxtrpo.ops.tree import all_finite

BATCHES = 100  # that a judgement is a mean of; older ones fade. With 20 noise decides, not what is true
STEPS = 5  # whose directions are judged together: what a single one shows is mostly noise
DAMPING = 0.05  # of the inner products, which are estimates
UNJUDGED = 10  # batches before which nothing is known, and all directions count alike


class Judge(NamedTuple):
    """What is known about directions; the first is that of the batch itself, which is never wholly left."""

    directions: Float[Array, "direction parameter"]  # mean of the last steps', each of length one in the Fisher norm
    slope: Float[Array, " direction"]  # mean of what batches saw along them, of standardised advantages
    square: Float[Array, " direction"]  # mean of its square
    weight_square: Float[Array, ""]  # sum of the squared weights of batches in the mean: one over how many count
    batches: Int[Array, ""]  # so far


def no_judgement(directions: int, parameters: int) -> Judge:
    """Before the first batch."""
    nothing = jnp.zeros(directions)
    return Judge(jnp.zeros((directions, parameters)), nothing, nothing, jnp.float32(1), jnp.int32(0))


def hear(judge: Judge, gradient: Float[Array, " parameter"]) -> Judge:
    """Takes in what a new batch says about the directions of before, which it has not seen.

    Its gradient is an unbiased estimate, and so is its slope along any direction that does not depend on it; along
    directions that it chose itself the slope is that of its noise.
    """
    rate = 1 / jnp.clip(judge.batches, 1, BATCHES)
    found = judge.directions @ gradient
    heard = (judge.batches > 0) & all_finite(found)  # there was a step before, and this batch can be used
    return judge._replace(
        slope=jnp.where(heard, (1 - rate) * judge.slope + rate * found, judge.slope),
        square=jnp.where(heard, (1 - rate) * judge.square + rate * found**2, judge.square),
        weight_square=jnp.where(heard, (1 - rate) ** 2 * judge.weight_square + rate**2, judge.weight_square),
        batches=judge.batches + 1,
    )


def remember(judge: Judge, directions: Float[Array, "direction parameter"]) -> Judge:
    """Takes in the directions of one more batch, each of length one in the Fisher norm; not any that is not finite."""
    rate = 1 / STEPS
    usable = jnp.isfinite(directions).all(axis=1, keepdims=True)
    return judge._replace(
        directions=jnp.where(usable, (1 - rate) * judge.directions + rate * directions, judge.directions)
    )


def standard_error(judge: Judge) -> Float[Array, " direction"]:
    """Of the slopes, from how much they differ between batches."""
    variance = jnp.maximum(judge.square - judge.slope**2, 0.0)
    number = 1 / judge.weight_square
    return jnp.sqrt(variance / jnp.maximum(number - 1, 1.0))


def weights(judge: Judge, gram: Float[Array, "direction direction"]) -> Float[Array, " direction"]:
    """How much of each direction to follow; they sum to one and none is negative.

    The direction d = sum w_i d_i that rises most for its length solves G w = slope, with G the inner products of the
    directions. A slope counts for the part of it that its noise leaves (the positive-part estimate of James & Stein
    1961), max(0, 1 - (error / slope)^2), so that a direction that shows nothing gets nothing. That of the batch itself
    counts for its error at least: its gradient is unbiased, however little of it can be seen; with nothing else to
    follow the step is TRPO's.

    Args:
      judge: what is known.
      gram: inner products of this batch's directions in the Fisher norm.
    """
    error = standard_error(judge)
    slope = jnp.maximum(judge.slope, 0.0)
    left = jnp.maximum(1 - (error / jnp.where(slope > 0, slope, 1.0)) ** 2, 0.0)
    believed = slope * left
    believed = believed.at[0].max(error[0])
    number, shown = len(gram), believed > 0
    # What shows nothing is left out before, or one that points away from another would be followed to undo that one.
    inner = jnp.where(shown[:, None] & shown, gram, 0.0)
    solved, _ = conjugate_gradient(lambda w: inner @ w + DAMPING * w, believed, max_iterations=number)
    found = jnp.maximum(solved, 0.0)
    total = jnp.sum(found)
    only_first = jnp.zeros(number).at[0].set(1.0)
    judged = jnp.where(total > 0, found / jnp.where(total > 0, total, 1.0), only_first)
    return jnp.where(judge.batches <= UNJUDGED, jnp.full(number, 1 / number), judged)
