"""The default rule: each batch judges the steps that were made before it was collected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxtrpo.adapt.rule import Rule, require_bounds
from jaxtrpo.config.checks import require_positive, require_whole
from jaxtrpo.config.specs import call_in_words
from jaxtrpo.ops.running_mean import RunningMean, no_mean, take_in
from jaxtrpo.rollout.types import Hyperparameters

_MEMORY = 50  # updates that `trust` takes the usual size of the strength from


class _Trust(NamedTuple):
    first: Hyperparameters
    log_radius: Float[Array, ""]  # of the max KL that is wanted over the first; below the bound the batch grows instead
    mean_square: RunningMean  # of the strength


def trust(
    *,
    strength: float = 0.0007,
    gain: float = 0.04,
    kl_range: tuple[float, float] = (0.5, 5.0),
    max_steps_per_update: int = 10_240,
    settle_steps: int = 1_000_000,
) -> Rule:
    """Lets each batch judge the steps that were made before it was collected.

    Every batch promises that the surrogate rises along the step it makes; most of that is noise, which the step follows
    as if it were gradient. The next batches can tell, since their noise is another: the metric `gain_ratio` is the part
    of the promised slope that they still see along the last steps. As in classical trust-region methods (Conn, Gould &
    Toint 2000) what came true is compared with what was promised, but by slopes, which are known far better than
    returns.

    The squared slope over 2 KL is the squared length of the natural gradient, so that
    gain_ratio * predicted_gain^2 / (2 KL) is the squared length of the part of it that is true, in units of the
    standardised advantages: its strength. Where it is large, there is far to go, and steps may be longer; where little
    or nothing is left, steps are too long or mostly noise, and the region shrinks. The signal alone would not do: the noise has 10 dimensions on InvertedPendulum and
    4,000 on Humanoid, and the part of a step that is true differs as much where the gradients are equally strong.

        found = gain_ratio * predicted_gain^2 / (2 KL)    of this batch's step; gain_ratio: of the steps before
        log max_kl += gain * clip((found - strength) / usual, -3, 3)    usual: root mean square of found, 50 updates

    A region smaller than `kl_range` allows is not made by shorter steps but by larger batches, which cost less time:
    the noise that a policy picks up on its way depends on max KL over steps per update (Smith et al. 2018, for SGD),
    and a batch that is larger has more signal (the gradient noise scale, McCandlish et al. 2018). That little signal is
    left for small batches is no reason to have no noise yet where a run still has millions of steps: then they stay as
    small as they are, and only its last ones settle what it has found, as learning rates fall at the end of long runs
    (Haegele et al. 2024).

    Args:
      strength: squared length of the true natural gradient that is aimed at.
      gain: change of the logarithm of the region in an update whose strength is as large as usual.
      kl_range: smallest and largest max KL, over the one that training starts with.
      max_steps_per_update: largest batch; the one that training starts with is the smallest. Give a run that is to
        have a smaller largest batch the same here: the rule does not see what a run cuts off.
      settle_steps: environment steps at the end of a run in which batches may be larger than the first ones.

    Raises:
      ValueError: a value is not positive, steps are not a whole number, or the bounds are not in order.
    """
    words = call_in_words(trust, locals())
    require_positive(strength=strength, gain=gain)
    require_whole(1, max_steps_per_update=max_steps_per_update, settle_steps=settle_steps)
    require_bounds(kl_range=kl_range)
    low, high = map(math.log, kl_range)

    def init(hyperparameters: Hyperparameters) -> _Trust:
        log_radius = jnp.clip(jnp.float32(0), low, high)
        return _Trust(hyperparameters, log_radius, no_mean())

    def update(
        state: _Trust, hyperparameters: Hyperparameters, metrics: Mapping[str, Array]
    ) -> tuple[_Trust, Hyperparameters]:
        # NaN before there was a step to judge, and where this update made none.
        found = metrics["gain_ratio"] * metrics["predicted_gain"] ** 2 / (2 * metrics["kl"])
        seen = jnp.isfinite(found)
        mean_square = take_in(state.mean_square, found**2, _MEMORY)
        usual = jnp.sqrt(jnp.where(mean_square.mean > 0, mean_square.mean, 1.0))
        change = jnp.where(seen, jnp.clip((found - strength) / usual, -3, 3), 0.0)
        first = state.first
        most = jnp.log(jnp.maximum(max_steps_per_update / first["steps_per_update"], 1.0))
        growth = jnp.where(metrics["steps_left"] > settle_steps, 0.0, most)
        log_radius = jnp.clip(state.log_radius + gain * change, low - growth, high)
        steps = first["steps_per_update"] * jnp.exp(jnp.maximum(low - log_radius, 0.0))
        now = {
            **hyperparameters,
            "max_kl": first["max_kl"] * jnp.exp(jnp.maximum(log_radius, low)),
            "steps_per_update": jnp.round(steps).astype(jnp.int32),
        }
        return _Trust(first, log_radius, mean_square), now

    return Rule(
        init,
        update,
        max_steps_per_update,
        changes=("max_kl", "steps_per_update"),
        reads=("gain_ratio", "predicted_gain", "kl"),
        words=words,
        replaces=("max_kl", "steps_per_update"),
    )
