"""Policy gradient (REINFORCE) with one Adam step per batch."""

from __future__ import annotations

import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxtrpo.algorithms.actor_critic import actor_critic
from jaxtrpo.algorithms.algorithm import Algorithm, Learner, Spec
from jaxtrpo.algorithms.policy_gradient import ADAPT, ascend, gradient_work, policy_gradient
from jaxtrpo.config.checks import require_not_negative, require_positive, require_share
from jaxtrpo.config.specs import spec_string_of


def pg(*, learning_rate: float = 3e-3, gae_lambda: float = 1.0, entropy_bonus: float = 0.0) -> Algorithm:
    """Policy gradient (REINFORCE, Williams 1992) with a critic baseline and one Adam step per batch.

    Advantages are Monte Carlo returns minus the critic's prediction, standardised over the batch. With `critic="none"`
    they are plain returns, which then miss all rewards beyond the end of the batch.

    Args:
      learning_rate: initial learning rate of Adam. By default it decays linearly to 0 over the run; the critic's decays
        in proportion.
      gae_lambda: lambda of GAE, trading bias (0) against variance (1); 1 gives Monte Carlo returns.
      entropy_bonus: coefficient of the entropy bonus, relative to advantages with standard deviation 1.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    spec_string = spec_string_of(pg, locals())
    require_positive(learning_rate=learning_rate)
    require_share(gae_lambda=gae_lambda)
    require_not_negative(entropy_bonus=entropy_bonus)
    optimizer = optax.scale_by_adam()

    def make(spec: Spec) -> Learner:

        def step(params, optimizer_state, action, found, hyperparameters, key):
            batch = policy_gradient(spec.policy, params, action, found, entropy_bonus)
            rate = hyperparameters["learning_rate"]
            params, optimizer_state = ascend(optimizer, params, optimizer_state, batch.gradient, rate)
            info = {"entropy": batch.entropy, "gradient_norm": jnp.linalg.norm(batch.gradient)}
            return params, optimizer_state, info

        return actor_critic(
            spec,
            step=step,
            no_memory=lambda params: optimizer.init(ravel_pytree(params)[0]),
            work=gradient_work,
            gae_lambda=gae_lambda,
            learning_rate=learning_rate,
        )

    starts = {"learning_rate": learning_rate, "steps_per_update": 1024}
    return Algorithm(spec_string, starts, make, adapt=ADAPT)
