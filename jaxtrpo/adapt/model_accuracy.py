"""The rule of guided policy search: larger steps where the fitted models are accurate."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxtrpo.adapt.rule import Rule, require_bounds
from jaxtrpo.config.specs import call_in_words
from jaxtrpo.rollout.types import Hyperparameters


def model_accuracy(*, change: tuple[float, float] = (0.5, 2.0), kl_range: tuple[float, float] = (0.001, 10.0)) -> Rule:
    """Adapts max KL by comparing the predicted gain of a step with the actual one.

    If returns rise by a - b kl along the step, of which the models only see a, the best KL is the one at which

        kl' = kl * predicted / (2 (predicted - actual))

    (Montgomery & Levine 2016, section 4.2). If the actual gain exceeds the predicted one, max KL
    grows as fast as it may. Needs `gps`, which measures both.

    Where all returns are alike already, models promise what cannot come, so that steps must be able to end: with a
    smallest KL of a tenth, policies that balanced InvertedPendulum came to drop it again.

    Args:
      change: smallest and largest factor between two updates.
      kl_range: smallest and largest max KL, over the one that training starts with.

    Raises:
      ValueError: the bounds are not in order.
    """
    words = call_in_words(model_accuracy, locals())
    require_bounds(change=change, kl_range=kl_range)

    def update(
        first: Float[Array, ""], hyperparameters: Hyperparameters, metrics: Mapping[str, Array]
    ) -> tuple[Float[Array, ""], Hyperparameters]:
        predicted, actual = (
            metrics["previous_predicted_gain"],
            metrics["actual_gain"],
        )  # NaN before there was a step to judge
        missing = predicted - actual
        factor = jnp.where(missing > 0, predicted / (2 * jnp.where(missing > 0, missing, 1.0)), change[1])
        factor = jnp.where(jnp.isfinite(predicted) & (predicted > 0), jnp.clip(factor, *change), 1.0)
        low, high = kl_range
        kl = jnp.clip(factor * hyperparameters["max_kl"], low * first, high * first)
        return first, {**hyperparameters, "max_kl": kl}

    return Rule(
        lambda hyperparameters: hyperparameters["max_kl"],
        update,
        changes=("max_kl",),
        reads=("previous_predicted_gain", "actual_gain"),
        words=words,
    )
