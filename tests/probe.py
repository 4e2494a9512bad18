"""Probe environment: small tasks, each of which can be solved exactly and fails for one kind of bug.

The tasks differ in the kind of reward, which is part of the environment's state, so that collecting and learning are
compiled once for all tasks. An observation is a random sign and the index of the step.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from support import actors, first, learner_of, spread

from jaxtrpo.algorithms.algorithm import Learner
from jaxtrpo.config.specs import parse
from jaxtrpo.critics.linear import linear_critic
from jaxtrpo.critics.mlp import mlp_critic
from jaxtrpo.envs.base import ActionSpace, EnvState, Transition, advance, start
from jaxtrpo.ops.moments import normalize
from jaxtrpo.policies.networks import gaussian_policy
from jaxtrpo.rollout.collect import make_collect, start_actors
from jaxtrpo.training.update import first_hyperparameters

DISCOUNT = 0.5
ENVS, LENGTH, SEGMENTS, ACTORS = 16, 8, 4, 2
KINDS = ("constant", "discount", "truncated", "observation", "action", "both", "delayed")
CONSTANT, DISCOUNTED, TRUNCATED, OBSERVATION, ACTION, BOTH, DELAYED = range(len(KINDS))


class ProbeState(NamedTuple):
    kind: jax.Array
    sign: jax.Array
    step: jax.Array
    first_action: jax.Array


class ProbeEnvironment:
    """See `jaxtrpo.envs.base.Environment`."""

    name = "probe"
    observation_size, action_size = 2, 1
    action_low, action_high = np.float32([-1.0]), np.float32([1.0])
    episode_length = 2

    def reset(self, key, num_envs: int) -> EnvState:
        blank = jnp.zeros(num_envs)
        return start(key, num_envs, self._reset_rows, ProbeState(jnp.zeros(num_envs, jnp.int32), blank, blank, blank))

    def step(self, state: EnvState, action) -> EnvState:
        kind, sign, step, first_action = state.physics
        action = action[:, 0]
        rewards = {
            CONSTANT: jnp.ones_like(action),
            DISCOUNTED: step,
            TRUNCATED: sign,
            OBSERVATION: sign,
            ACTION: -((action - 0.5) ** 2),
            BOTH: -((action - 0.5 * sign) ** 2),
            DELAYED: -step * (first_action - 0.5) ** 2,
        }
        last_step = {DISCOUNTED: 1, TRUNCATED: np.inf, DELAYED: 1}
        physics = ProbeState(kind, sign, step + 1, jnp.where(step == 0, action, first_action))
        moved = Transition(
            physics=physics,
            obs=self._obs(physics),
            reward=jnp.select([kind == k for k in rewards], list(rewards.values())),
            terminated=step >= jnp.select([kind == k for k in last_step], list(last_step.values()), 0),
            finite=jnp.ones_like(action, bool),
        )
        return advance(state, moved, self._reset_rows, self.episode_length)

    def _reset_rows(self, keys, mask, physics):
        sign = jax.vmap(lambda key: jnp.sign(jax.random.uniform(key) - 0.5))(keys)
        blank = jnp.zeros_like(sign)
        fresh = ProbeState(physics.kind, sign, blank, blank)
        physics = jax.tree.map(lambda new, old: jnp.where(mask, new, old), fresh, physics)
        return physics, self._obs(physics)

    def _obs(self, physics):
        # In endless episodes, all steps have the same observation, so that the one after the truncation is not special.
        step = jnp.where(physics.kind == TRUNCATED, 0.0, physics.step)
        return jnp.stack([physics.sign, step], axis=-1)


POLICY = gaussian_policy(2, 1, hidden=(8,), initial_log_std=-0.5)
CRITICS = {
    "linear": linear_critic(2),
    "mlp": mlp_critic(2, hidden=(16,), epochs=4, minibatch_size=64, learning_rate=1e-2),
}


@functools.cache
def compiled_start():
    return jax.jit(lambda key: start_actors(ProbeEnvironment(), key, ENVS))


@functools.cache
def compiled_collect():
    return actors(ACTORS).map(make_collect(ProbeEnvironment(), POLICY, segment_length=LENGTH, max_segments=SEGMENTS))


@functools.cache
def made(algorithm: str, critic: str) -> Learner:
    return learner_of(
        parse("algorithm", algorithm),
        POLICY,
        CRITICS[critic],
        observation_size=2,
        discount=DISCOUNT,
        segment_steps=ENVS * LENGTH,
        segment_length=LENGTH,
        actions=ActionSpace(ProbeEnvironment.action_low, ProbeEnvironment.action_high),
    )


@functools.cache
def compiled_learn(algorithm: str, critic: str):
    return actors(ACTORS).map(made(algorithm, critic).learn)


class Learned:
    """Result of training an algorithm, given by its spec string, on one probe."""

    def __init__(self, kind: int, algorithm: str, critic: str, updates: int):
        group = actors(ACTORS)
        environments = compiled_start()(jax.random.PRNGKey(1))
        physics = environments.env.physics._replace(kind=jnp.full(ENVS, kind, jnp.int32))
        actor = group.split_envs(environments._replace(env=environments.env._replace(physics=physics)))
        key = jax.random.PRNGKey(2)
        learner = group.replicate(made(algorithm, critic).init(key, key))
        hyperparameters = spread(first_hyperparameters(parse("algorithm", algorithm)), ACTORS)
        for update in range(updates):
            acting = learner._replace(critic=(), memory=())
            actor, batch = compiled_collect()(actor, acting, np.full(ACTORS, SEGMENTS, np.int32))
            keys = spread(jax.random.PRNGKey(10 + update), ACTORS)
            learner, _ = compiled_learn(algorithm, critic)(learner, batch, hyperparameters, keys)
        self.learner, self.critic = first(learner), CRITICS[critic]

    def value(self, sign: float, step: int) -> float:
        obs = normalize(jnp.array([[sign, step]], jnp.float32), jax.tree.map(jnp.asarray, self.learner.obs_moments))
        return float(self.critic.value(self.learner.critic, obs, jnp.array([step]))[0])

    def mean_action(self, sign: float, step: int) -> float:
        obs = normalize(jnp.array([sign, step], jnp.float32), jax.tree.map(jnp.asarray, self.learner.obs_moments))
        return float(POLICY.apply(self.learner.policy, obs).mean[0])
