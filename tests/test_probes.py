"""Probe environments: each can be solved exactly, and fails for one kind of bug.

All probes are one environment with the kind of reward as data in its state, so that collecting and learning are
compiled once for all of them. An observation is a random sign and the number of the step.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import actors, first, spread

from jaxtrpo.algorithms.trpo import make_learn
from jaxtrpo.algorithms.trust_region import no_path
from jaxtrpo.collect import make_collect, start_actors
from jaxtrpo.critics.linear import linear_critic
from jaxtrpo.critics.mlp import mlp_critic
from jaxtrpo.envs.base import EnvState, Transition, advance, start
from jaxtrpo.ops.moments import no_moments, normalize
from jaxtrpo.ops.running_mean import no_mean
from jaxtrpo.policies.networks import gaussian_policy
from jaxtrpo.types import LearnerState

DISCOUNT = 0.5
ENVS, LENGTH, SEGMENTS, ACTORS = 16, 8, 4, 2
KINDS = ("constant", "discount", "truncated", "observation", "action", "both", "delayed")
CONSTANT, DISCOUNTED, TRUNCATED, OBSERVATION, ACTION, BOTH, DELAYED = range(len(KINDS))


class Physics(NamedTuple):
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
        return start(key, num_envs, self._reset_rows, Physics(jnp.zeros(num_envs, jnp.int32), blank, blank, blank))

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
        physics = Physics(kind, sign, step + 1, jnp.where(step == 0, action, first_action))
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
        fresh = Physics(physics.kind, sign, blank, blank)
        physics = jax.tree.map(lambda new, old: jnp.where(mask, new, old), fresh, physics)
        return physics, self._obs(physics)

    def _obs(self, physics):
        # In an episode that goes on for ever all steps look alike, or the one after the last would be like no other.
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
def compiled_learn(critic: str):
    return actors(ACTORS).map(make_learn(POLICY, CRITICS[critic], discount=DISCOUNT, gae_lambda=0.9, cg_iterations=10))


class Learned:
    """What a training on one probe ends with."""

    def __init__(self, kind: int, critic: str, updates: int):
        team = actors(ACTORS)
        environments = compiled_start()(jax.random.PRNGKey(1))
        physics = environments.env.physics._replace(kind=jnp.full(ENVS, kind, jnp.int32))
        actor = team.split_envs(environments._replace(env=environments.env._replace(physics=physics)))
        key = jax.random.PRNGKey(2)
        params = POLICY.init(key)
        learner = LearnerState(params, CRITICS[critic].init(key), no_moments((2,)), no_path(params), no_mean())
        learner = team.replicate(learner)
        for update in range(updates):
            actor, batch = compiled_collect()(actor, learner._replace(critic=()), np.full(ACTORS, SEGMENTS, np.int32))
            keys = spread(jax.random.PRNGKey(10 + update), ACTORS)
            learner, _ = compiled_learn(critic)(learner, batch, np.full(ACTORS, 0.05, np.float32), keys)
        self.learner, self.critic = first(learner), CRITICS[critic]

    def value(self, sign: float, step: int) -> float:
        obs = normalize(jnp.array([[sign, step]], jnp.float32), jax.tree.map(jnp.asarray, self.learner.obs_moments))
        return float(self.critic.value(self.learner.critic, obs, jnp.array([step]))[0])

    def mean_action(self, sign: float, step: int) -> float:
        obs = normalize(jnp.array([sign, step], jnp.float32), jax.tree.map(jnp.asarray, self.learner.obs_moments))
        return float(POLICY.apply(self.learner.policy, obs).mean[0])


ACCURACY = {"linear": 2e-3, "mlp": 0.05}
both_critics = pytest.mark.parametrize("critic", CRITICS)


@both_critics
def test_value_of_a_constant_reward_is_the_reward(critic):
    """Fails if the critic does not learn at all, or looks beyond a termination."""
    learned = Learned(CONSTANT, critic, updates=15)
    for sign in (-1, 1):
        np.testing.assert_allclose(learned.value(sign, 0), 1.0, atol=ACCURACY[critic])


@both_critics
def test_value_of_a_reward_in_the_next_step_is_discounted_once(critic):
    """Fails if the discount is forgotten, or rewards and values are a step apart."""
    learned = Learned(DISCOUNTED, critic, updates=15)
    for sign in (-1, 1):
        np.testing.assert_allclose(learned.value(sign, 0), DISCOUNT, atol=ACCURACY[critic])
        np.testing.assert_allclose(learned.value(sign, 1), 1.0, atol=ACCURACY[critic])


@both_critics
def test_value_beyond_a_time_limit_is_that_of_going_on_for_ever(critic):
    """The reward is the sign, which a reset draws anew. Fails if a truncated episode counts as one that terminated, or
    bootstraps from the state after the reset.
    """
    learned = Learned(TRUNCATED, critic, updates=20)
    for sign in (-1, 1):
        np.testing.assert_allclose(learned.value(sign, 0), sign / (1 - DISCOUNT), atol=2 * ACCURACY[critic])


@both_critics
def test_value_follows_the_observation(critic):
    """Fails if observations and returns are mixed up, between steps or between environments."""
    learned = Learned(OBSERVATION, critic, updates=15)
    for sign in (-1, 1):
        np.testing.assert_allclose(learned.value(sign, 0), sign, atol=ACCURACY[critic])


def test_policy_finds_the_best_action():
    """Fails if the policy does not learn, or if advantages have the wrong sign."""
    learned = Learned(ACTION, "mlp", updates=40)
    for sign in (-1, 1):
        np.testing.assert_allclose(learned.mean_action(sign, 0), 0.5, atol=0.05)


def test_policy_finds_the_best_action_for_each_observation():
    """Fails if observations, actions and advantages are not of the same step and environment."""
    learned = Learned(BOTH, "mlp", updates=40)
    for sign in (-1, 1):
        np.testing.assert_allclose(learned.mean_action(sign, 0), 0.5 * sign, atol=0.05)


def test_policy_finds_the_action_that_pays_a_step_later():
    """Fails if advantages do not reach back in time; what pays is nowhere in the observation."""
    learned = Learned(DELAYED, "mlp", updates=60)
    for sign in (-1, 1):
        np.testing.assert_allclose(learned.mean_action(sign, 0), 0.5, atol=0.1)
