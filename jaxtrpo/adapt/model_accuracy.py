"""The rule of guided policy search: larger steps while the fitted models are accurate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxtrpo.adapt.rule import Rule, require_bounds
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.rollout.types import Hyperparameters


class MaxKL(NamedTuple):
    """State of the rule."""

    first: Float[Array, ""]  # of the run
    measured: Float[Array, ""]  # that of the step whose gain the next update reports


def model_accuracy(*, change: tuple[float, float] = (0.5, 2.0), kl_range: tuple[float, float] = (0.001, 10.0)) -> Rule:
    """Adapts max KL by comparing the predicted gain of a step with the actual one; for `gps`, which measures both.

    Assumes that a step with divergence kl gains a * kl - b * kl^2, of which the models predict only a * kl. The gain is
    then largest at

        kl' = kl * predicted / (2 (predicted - actual))

    (Montgomery & Levine 2016, section 4.2). The step that an update measures is that of the update before, and so is
    its kl; if that of the present update took its place, max KL would swing around the best one for ever. If the actual
    gain exceeds the predicted one, max KL grows by the largest factor allowed.

    The lower bound of `kl_range` must be small enough for steps to vanish: once all returns are equal, the models
    predict gains that cannot come true. With a lower bound of 0.1, policies that had learned to balance
    InvertedPendulum later failed again.

    Args:
      change: smallest and largest factor by which max KL changes from one update to the next.
      kl_range: smallest and largest max KL, as multiples of its initial value.

    Raises:
      ValueError: bounds are not two positive numbers in ascending order.
    """
    spec_string = spec_string_of(model_accuracy, locals())
    require_bounds(change=change, kl_range=kl_range)

    def update(
        state: MaxKL, hyperparameters: Hyperparameters, metrics: Mapping[str, Array]
    ) -> tuple[MaxKL, Hyperparameters]:
        now = hyperparameters["max_kl"]
        # NaN until a step has been evaluated
        predicted, actual = metrics["previous_predicted_gain"], metrics["actual_gain"]
        missing = predicted - actual
        best = state.measured * predicted / (2 * jnp.where(missing > 0, missing, 1.0))
        best = jnp.where(missing > 0, best, change[1] * now)
        best = jnp.clip(best, change[0] * now, change[1] * now)
        best = jnp.where(jnp.isfinite(missing) & (predicted > 0), best, now)
        low, high = kl_range
        kl = jnp.clip(best, low * state.first, high * state.first)
        return MaxKL(state.first, metrics.get("max_kl", now)), {**hyperparameters, "max_kl": kl}

    return Rule(
        lambda hyperparameters: MaxKL(hyperparameters["max_kl"], hyperparameters["max_kl"]),
        update,
        changes=("max_kl",),
        reads=("previous_predicted_gain", "actual_gain"),
        spec_string=spec_string,
    )
