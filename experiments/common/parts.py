"""One update and the parts of its learning, so that each can be timed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from jaxtrpo.actors import Actors
from jaxtrpo.adapt import fixed
from jaxtrpo.algorithms.advantages import Advantages, estimate_advantages
from jaxtrpo.algorithms.trust_region import make_policy_step
from jaxtrpo.config import Config, resolve_sizes
from jaxtrpo.envs.registry import make_env
from jaxtrpo.losses import importance_weighted_advantage
from jaxtrpo.types import Batch, LearnerState
from jaxtrpo.update import Update, make_critic, make_update, policy_step_settings


def fixed_update(name: str, config: Config, actors: Actors) -> Update:
    """The update of a run whose settings do not change."""
    sizes = resolve_sizes(config, actors.count)
    return make_update(make_env(name), config, sizes, actors, importance_weighted_advantage, fixed())


class Parts:
    """Of a run with these settings, compiled one by one; `update` is the whole.

    Here all actors share the policy's step and each fits the critic. In the whole one may do the first while another
    does the second (see `actors.side_by_side`).

    Leaves of all arguments have a leading axis of actors.
    """

    def __init__(self, name: str, config: Config, actors: Actors):
        self.update = fixed_update(name, config, actors)
        critic = make_critic(make_env(name), config)
        step = make_policy_step(
            self.update.policy, surrogate=importance_weighted_advantage, **policy_step_settings(config)
        )

        def advantages(learner: LearnerState, batch: Batch) -> Advantages:
            return estimate_advantages(
                critic,
                learner.critic,
                learner.obs_moments,
                batch,
                discount=config.discount,
                gae_lambda=config.gae_lambda,
            )

        self._advantages, self._step, self._fit = map(actors.map, (advantages, step, critic.fit))
        self._key = actors.replicate(jax.random.PRNGKey(0))
        self._max_kl = actors.replicate(jnp.float32(config.max_kl))

    def advantages(self, learner: LearnerState, batch: Batch) -> Advantages:
        """What the critic makes of a batch."""
        return self._advantages(learner, batch)

    def policy(self, learner: LearnerState, batch: Batch, found: Advantages) -> PyTree:
        """The step of the policy."""
        return self._step(learner.policy, learner.path, batch.steps.action, found, self._max_kl, self._key)

    def critic(self, learner: LearnerState, found: Advantages) -> PyTree:
        """The fit of the critic."""
        return self._fit(learner.critic, found.targets, self._key)
