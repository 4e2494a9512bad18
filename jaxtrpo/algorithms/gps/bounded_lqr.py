"""Linear-quadratic regulation with a bound on the KL divergence."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from jaxtrpo.algorithms.gps.lqr import Controller, Dynamics, Reward, best_response, outcome
from jaxtrpo.ops.tree import all_finite

# Range of the multiplier (reward per nat), in standard deviations of rewards. Below the smallest, the bound is not
# active; at the largest, the controller does not move.
SMALLEST, LARGEST = 1e-5, 1e6
TRIALS = 24  # bisections of the log multiplier: to 2e-6 of it


class BoundedInfo(NamedTuple):
    """Diagnostics of one search."""

    kl: Float[Array, "*batch"]  # expected KL(controller || reference), nats, summed over time
    predicted_gain: Float[Array, "*batch"]  # expected return of the controller minus that of the reference
    multiplier: Float[Array, "*batch"]  # multiplier that meets the bound
    found: Bool[Array, "*batch"]  # if False, the controller is the reference
    indefinite: Int[Array, "*batch"]  # number of trials discarded because there was no best controller


class _Search(NamedTuple):
    low: Float[Array, ""]  # log multiplier that is too small, or the lower end of the range
    high: Float[Array, ""]  # log multiplier that is large enough, or the upper end of the range
    best: Controller
    info: BoundedInfo


def bounded_response(
    dynamics: Dynamics, reward: Reward, reference: Controller, max_kl: Float[Array, ""], unit: Float[Array, ""]
) -> tuple[Controller, BoundedInfo]:
    """Finds the controller with the largest expected return whose expected KL to the reference is at most `max_kl`.

    The KL decreases as the multiplier of `best_response` grows, so bisection finds the smallest multiplier allowed
    (Levine & Abbeel 2014, section 3.1). A multiplier also counts as too small if a matrix of the recursion is not
    positive definite or a result is not finite, because larger multipliers add more of the reference's precision.

    Args:
      dynamics: dynamics along one trajectory.
      reward: reward along the trajectory.
      reference: linear-Gaussian controller that the models were fitted around.
      max_kl: KL bound, nats, summed over time.
      unit: standard deviation of rewards.

    Returns:
      The controller, or the reference if none was found, and diagnostics.
    """
    before = outcome(dynamics, reward, reference, reference)

    def attempt(_: Array, search: _Search) -> _Search:
        middle = (search.low + search.high) / 2
        candidate, definite = best_response(dynamics, reward, reference, unit * jnp.exp(middle))
        after = outcome(dynamics, reward, candidate, reference)
        predicted_gain = after.return_ - before.return_
        # Comparisons with NaN are false, so non-finite results are never allowed.
        allowed = definite & (after.kl <= max_kl) & (predicted_gain >= 0) & all_finite(candidate)
        info = BoundedInfo(
            kl=after.kl,
            predicted_gain=predicted_gain,
            multiplier=unit * jnp.exp(middle),
            found=jnp.bool_(True),
            indefinite=search.info.indefinite,
        )
        best, info = optax.tree.where(allowed, (candidate, info), (search.best, search.info))
        info = info._replace(indefinite=info.indefinite + ~definite)
        low, high = jnp.where(allowed, search.low, middle), jnp.where(allowed, middle, search.high)
        return _Search(low, high, best, info)

    zero = jnp.zeros_like(before.return_)
    nothing = BoundedInfo(zero, zero, jnp.full_like(zero, jnp.nan), jnp.bool_(False), jnp.int32(0))
    low, high = (jnp.log(jnp.full_like(zero, end)) for end in (SMALLEST, LARGEST))
    last = jax.lax.fori_loop(0, TRIALS, attempt, _Search(low, high, reference, nothing))
    return last.best, last.info
