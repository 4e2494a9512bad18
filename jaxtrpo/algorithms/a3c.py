"""Asynchronous advantage actor-critic, A3C (Mnih et al. 2016)."""

from __future__ import annotations

from jaxtrpo.algorithms.a2c import CRITIC, NUM_ENVS, STEPS_OF_EACH, learner_of
from jaxtrpo.algorithms.algorithm import Algorithm
from jaxtrpo.algorithms.policy_gradient import ADAPT
from jaxtrpo.config.specs import spec_string_of


def a3c(
    *,
    learning_rate: float = 3e-3,
    gae_lambda: float = 0.95,
    entropy_bonus: float = 0.01,
    max_gradient_norm: float = 0.5,
) -> Algorithm:
    """Asynchronous advantage actor-critic (A3C): actors apply gradients without waiting for each other.

    Each actor copies the parameters, collects a batch with them and applies its gradient to the shared parameters,
    which other actors may have updated meanwhile; the metric `staleness` counts these updates. Optimiser state is
    shared. The order of the actors depends on the machine, so runs are not reproducible bit by bit, and a resumed run
    differs from an uninterrupted one. Each row of the metrics describes one gradient.

    Args:
      learning_rate: initial learning rate of RMSprop. By default it decays linearly to 0 over the run; the critic's
        decays in proportion.
      gae_lambda: lambda of GAE, trading bias (0) against variance (1); 1 gives n-step returns.
      entropy_bonus: coefficient of the entropy bonus, relative to advantages with standard deviation 1.
      max_gradient_norm: largest norm of the policy gradient, which is clipped to it.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    spec_string = spec_string_of(a3c, locals())
    make = learner_of("a3c", learning_rate, gae_lambda, entropy_bonus, max_gradient_norm)
    starts = {"learning_rate": learning_rate, "steps_per_update": STEPS_OF_EACH * NUM_ENVS}
    return Algorithm(spec_string, starts, make, ADAPT, CRITIC, NUM_ENVS, STEPS_OF_EACH)
