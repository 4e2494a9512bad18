"""Asynchronous advantage actor-critic, A3C (Mnih et al. 2016): another name of `a2c(asynchronous=True)`."""

from __future__ import annotations

from jaxtrpo.algorithms.a2c import a2c
from jaxtrpo.algorithms.algorithm import Algorithm
from jaxtrpo.algorithms.shared_torso import VALUE_WEIGHT


def a3c(
    *,
    learning_rate: float = 3e-3,
    gae_lambda: float = 0.98,
    entropy_bonus: float = 0.01,
    max_gradient_norm: float = 0.5,
    value_weight: float = VALUE_WEIGHT,
) -> Algorithm:
    """Asynchronous advantage actor-critic (A3C), the same as `a2c(asynchronous=True)`.

    Actors apply gradients without waiting for each other. The order of these updates depends on timing, so
    runs are not reproducible bit by bit, and a resumed run differs from an uninterrupted one.

    Args:
      learning_rate: initial learning rate of RMSprop. By default it decays linearly to 0 over the run; the critic's
        decays in proportion.
      gae_lambda: lambda of GAE, trading bias (0) against variance (1); 1 gives n-step returns.
      entropy_bonus: coefficient of the entropy bonus, relative to advantages with standard deviation 1.
      max_gradient_norm: maximum norm, to which the policy gradient is clipped; with a shared policy, the gradient of
        both losses.
      value_weight: coefficient of the value loss of a shared policy, the mean squared error of normalised returns; for
        other policies it must keep its default.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    return a2c(
        learning_rate=learning_rate,
        gae_lambda=gae_lambda,
        entropy_bonus=entropy_bonus,
        max_gradient_norm=max_gradient_norm,
        value_weight=value_weight,
        asynchronous=True,
    )
