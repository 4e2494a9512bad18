"""The parts of an update of TRPO, so that each can be timed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from common.words import defaults_of
from jaxtrpo.algorithms.advantages import Advantages, estimate_advantages, standardize
from jaxtrpo.algorithms.natural_gradient import damping_for, make_direction
from jaxtrpo.algorithms.trpo import trpo
from jaxtrpo.algorithms.trust_region import make_policy_step
from jaxtrpo.config.specs import parse
from jaxtrpo.envs.observation_space import flat_space
from jaxtrpo.rollout.types import Batch, LearnerState
from jaxtrpo.training.train import prepare

OF_DIRECTION = ("fisher_samples", "cg_iterations", "cg_damping")


class Parts:
    """Of a run on all cores whose settings do not change, compiled one by one; `run` is the whole.

    Here all actors share the policy's step and each fits the critic. In the whole one may do the first while another
    does the second (see `actors.side_by_side`).

    Leaves of all arguments have a leading axis of actors.
    """

    def __init__(self, name: str, steps_per_update: int, **settings: Any):
        """Prepares a run; `settings` are those of `trpo`."""
        self.run = prepare(name, algorithm=trpo(**settings), adapt="fixed", steps_per_update=steps_per_update)
        settings = {**defaults_of(trpo), **settings}
        settings["cg_damping"] = damping_for(settings["cg_damping"], flat_space(self.run.env.observation_size))
        critic = parse("critic", self.run.config.critic).make(self.run.env.observation_size)
        step = make_policy_step(
            make_direction(self.run.update.policy, None, *(settings[name] for name in OF_DIRECTION)),
            line_search_shrink=settings["line_search_shrink"],
            line_search_steps=settings["line_search_steps"],
        )

        def advantages(learner: LearnerState, batch: Batch) -> Advantages:
            unscaled = estimate_advantages(
                critic,
                learner.critic,
                learner.obs_moments,
                batch,
                discount=self.run.config.discount,
                gae_lambda=settings["gae_lambda"],
            )
            return standardize(unscaled, learner.obs_moments)

        actors = self.run.actors
        self._advantages, self._step, self._fit = map(actors.map, (advantages, step, critic.fit))
        self._key, self._rate = actors.replicate((jax.random.PRNGKey(0), jnp.ones(())))
        self._max_kl = actors.replicate(jnp.float32(settings["max_kl"]))

    def advantages(self, learner: LearnerState, batch: Batch) -> Advantages:
        """What the critic makes of a batch."""
        return self._advantages(learner, batch)

    def policy(self, learner: LearnerState, batch: Batch, found: Advantages) -> PyTree:
        """The step of the policy."""
        path = learner.memory.path
        return self._step(learner.policy, path, batch.steps.action, found, self._max_kl, self._key)

    def critic(self, learner: LearnerState, found: Advantages) -> PyTree:
        """The fit of the critic."""
        return self._fit(learner.critic, found.targets, self._key, self._rate)
