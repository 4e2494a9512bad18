"""Linear-quadratic regulation under a bound on the KL divergence."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from jaxtrpo.algorithms.gps.lqr import Controller, Dynamics, Reward, best_response, outcome
from jaxtrpo.ops.tree import all_finite

# Of the multiplier, in units of reward a nat, over the standard deviation of rewards. Below the smallest the bound
# holds no more; at the largest nothing moves.
SMALLEST, LARGEST = 1e-5, 1e6
TRIALS = 24  # bisections of the logarithm: to 2e-6 of it


class BoundedInfo(NamedTuple):
    """What one search did."""

    kl: Float[Array, "*batch"]  # expected KL(controller || reference), nats, summed over time
    predicted_gain: Float[Array, "*batch"]  # expected return of the controller less that of the reference
    multiplier: Float[Array, "*batch"]  # that the bound was met with
    found: Bool[Array, "*batch"]  # if not, the controller is the reference
    indefinite: Int[Array, "*batch"]  # trials without a best controller, which were not followed


class _Search(NamedTuple):
    low: Float[Array, ""]  # log multiplier, too small or not tried
    high: Float[Array, ""]  # large enough, if anything is
    best: Controller
    info: BoundedInfo


def bounded_response(
    dynamics: Dynamics, reward: Reward, reference: Controller, max_kl: Float[Array, ""], unit: Float[Array, ""]
) -> tuple[Controller, BoundedInfo]:
    """The controller with the largest expected return whose expected KL to the reference is at most `max_kl`.

    The KL falls as the multiplier of `best_response` grows, so that bisection finds the smallest that is allowed
    (Levine & Abbeel 2014, section 3.1). A trial counts as too small where a matrix of the recursion was not positive
    definite, or anything not finite: larger multipliers add the reference's precision to it.

    Args:
      dynamics: of one trajectory.
      reward: of it.
      reference: linear-Gaussian controller that the models were made around.
      max_kl: nats, summed over time.
      unit: standard deviation of rewards.
    """
    before = outcome(dynamics, reward, reference, reference)

    def attempt(_: Array, search: _Search) -> _Search:
        middle = (search.low + search.high) / 2
        candidate, definite = best_response(dynamics, reward, reference, unit * jnp.exp(middle))
        after = outcome(dynamics, reward, candidate, reference)
        predicted_gain = after.return_ - before.return_
        # Comparisons with NaN are false, so what is not finite is never allowed.
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
