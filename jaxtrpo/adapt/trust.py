"""The default rule: each new batch evaluates the policy steps taken before it was collected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxtrpo.adapt.rule import Rule, require_bounds
from jaxtrpo.config.checks import require_positive, require_whole
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.ops.running_mean import RunningMean, no_mean, update_mean
from jaxtrpo.rollout.types import Hyperparameters

_MEMORY = 50  # updates over which the root mean square of the strength is taken


class _Trust(NamedTuple):
    first: Hyperparameters
    log_radius: Float[Array, ""]  # log(desired max KL / initial max KL); below the lower bound the batch grows instead
    mean_square: RunningMean  # of the measured strength


def trust(
    *,
    strength: float = 0.0007,
    gain: float = 0.04,
    kl_range: tuple[float, float] = (0.5, 5.0),
    max_steps_per_update: int = 10_240,
    settle_steps: int = 1_000_000,
) -> Rule:
    """Adapts max KL and batch size by how well later batches confirm the steps of earlier ones.

    Every batch predicts that the surrogate rises along its own step, but most of that slope is noise, which the step
    follows as if it were gradient. Later batches have independent noise: the metric `gain_ratio` is the fraction of the
    predicted slope that the current batch still measures along the last steps. As in classical trust-region methods
    (Conn, Gould & Toint 2000), the actual gain is compared with the predicted one, but as slopes, which are estimated
    far more accurately than returns.

    The squared slope over 2 KL is the squared length of the natural gradient, so
    gain_ratio * predicted_gain^2 / (2 KL) estimates the squared length of the true natural gradient, in units of the
    standardised advantages; this is called its strength. If the strength is large, the trust region grows; if little
    or nothing is left, steps are too long or mostly noise, and it shrinks. `gain_ratio` alone is not enough: the noise
    has 10 dimensions on InvertedPendulum and 4,000 on Humanoid, so the true fraction of a step differs as much even
    where the gradients are equally strong.

        measured = gain_ratio * predicted_gain^2 / (2 KL)    of this batch's step; gain_ratio: of the previous steps
        log max_kl += gain * clip((measured - strength) / usual, -3, 3)    usual: root mean square over 50 updates

    Below the lower bound of `kl_range`, the batch grows instead of the step shrinking further, which costs less
    wall-clock time: the noise that a policy accumulates depends on max KL over steps per update (Smith et al. 2018, for
    SGD), and larger batches have more signal (the gradient noise scale, McCandlish et al. 2018). A weak signal alone
    does not justify larger batches early in a run. Batches therefore keep their initial size until the last
    `settle_steps`, when lower noise lets the policy settle, much as learning rates decay at the end of long runs
    (Haegele et al. 2024).

    Args:
      strength: target for the squared length of the true natural gradient.
      gain: change of log max KL in an update whose strength deviates from the target by its root mean square.
      kl_range: smallest and largest max KL, as multiples of its initial value.
      max_steps_per_update: largest batch, environment steps; the initial batch is the smallest. If the run limits
        max_steps_per_update, use the same limit here, because the rule does not see that a batch was cut.
      settle_steps: environment steps at the end of a run during which batches may exceed their initial size.

    Raises:
      ValueError: a value is not positive, a number of steps is not an integer, or bounds are not in ascending order.
    """
    spec_string = spec_string_of(trust, locals())
    require_positive(strength=strength, gain=gain)
    require_whole(1, max_steps_per_update=max_steps_per_update)
    require_whole(1, 10**15, settle_steps=settle_steps)
    require_bounds(kl_range=kl_range)
    low, high = map(math.log, kl_range)

    def init(hyperparameters: Hyperparameters) -> _Trust:
        log_radius = jnp.clip(jnp.float32(0), low, high)
        return _Trust(hyperparameters, log_radius, no_mean())

    def update(
        state: _Trust, hyperparameters: Hyperparameters, metrics: Mapping[str, Array]
    ) -> tuple[_Trust, Hyperparameters]:
        # NaN until a step has been evaluated, and whenever this update made no step.
        measured = metrics["gain_ratio"] * metrics["predicted_gain"] ** 2 / (2 * metrics["kl"])
        seen = jnp.isfinite(measured)
        mean_square = update_mean(state.mean_square, measured**2, _MEMORY)
        usual = jnp.sqrt(jnp.where(mean_square.mean > 0, mean_square.mean, 1.0))
        change = jnp.where(seen, jnp.clip((measured - strength) / usual, -3, 3), 0.0)
        first = state.first
        most = jnp.log(jnp.maximum(max_steps_per_update / first["steps_per_update"], 1.0))
        growth = jnp.where(metrics["steps_left"] > float(settle_steps), 0.0, most)
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
        spec_string=spec_string,
        replaces=("max_kl", "steps_per_update"),
    )
