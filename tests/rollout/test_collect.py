"""Collecting is independent of the number of actors and segments, and batches match plain loops."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from support import actors, counted_compilations, undeal

from jaxtrpo.envs.base import EnvState, Transition, advance, env_keys, start
from jaxtrpo.envs.registry import make_env
from jaxtrpo.ops.moments import Moments
from jaxtrpo.parallel.actors import join_envs
from jaxtrpo.policies.distributions import Gaussian, log_prob
from jaxtrpo.policies.networks import Policy, gaussian_policy
from jaxtrpo.rollout.collect import make_collect, start_actors
from jaxtrpo.rollout.types import Batch, LearnerState

ENVS, LENGTH, SEGMENTS = 4, 8, 5


class Place(NamedTuple):
    position: jax.Array
    last_action: jax.Array


class WalkEnvironment:
    """A point on a line that terminates beyond 2, is invalid between 0.8 and 0.9, and is truncated after 11 steps."""

    name = "walk"
    observation_size, action_size = 3, 1
    action_low, action_high = np.float32([-0.5]), np.float32([1.5])
    episode_length = 11

    def reset(self, key, num_envs: int) -> EnvState:
        return start(key, num_envs, self._reset_rows, Place(jnp.zeros(num_envs), jnp.zeros(num_envs)))

    def step(self, state: EnvState, action) -> EnvState:
        place = Place(state.physics.position + 0.5 * (action[:, 0] - 0.5), action[:, 0])
        moved = Transition(
            physics=place,
            obs=self._obs(place),
            reward=1.0 + place.position,
            terminated=jnp.abs(place.position) > 2.0,
            finite=(place.position < 0.8) | (place.position > 0.9),
        )
        return advance(state, moved, self._reset_rows, self.episode_length)

    def _reset_rows(self, keys, mask, place):
        position = jax.vmap(lambda key: 0.3 * jax.random.normal(key))(keys)
        fresh = Place(position, jnp.zeros_like(position))
        place = jax.tree.map(lambda new, old: jnp.where(mask, new, old), fresh, place)
        return place, self._obs(place)

    def _obs(self, place):
        return jnp.stack([place.position, place.last_action, place.position**2], axis=-1)


class Setup(NamedTuple):
    """An environment, a policy, and the initial state of a run."""

    env: object
    policy: Policy
    learner: LearnerState
    start: object


def make_setup(env, policy, params) -> Setup:
    moments = Moments(
        count=np.float32(10),
        mean=np.linspace(-0.2, 0.3, env.observation_size, dtype=np.float32),
        variance=np.linspace(0.3, 2.0, env.observation_size, dtype=np.float32),
    )
    environments = jax.jit(lambda key: start_actors(env, key, ENVS))(jax.random.PRNGKey(0))
    return Setup(env, policy, LearnerState(params, (), moments, ()), jax.device_get(environments))


@functools.cache
def compiled(setup: int, count: int):
    env, policy = SETUPS[setup]()[:2]
    return actors(count).map(make_collect(env, policy, segment_length=LENGTH, max_segments=SEGMENTS))


def collect(setup, count=1, num_segments=SEGMENTS, state=None, learner=None):
    """Returns the final state and the batch of all environments."""
    made, group = SETUPS[setup](), actors(count)
    state = group.split_envs(made.start if state is None else state)
    learner = group.replicate(made.learner if learner is None else learner)
    after, batch = compiled(setup, count)(state, learner, np.full(count, num_segments, np.int32))
    return join_envs(after), Batch(jax.tree.map(undeal, batch.steps), np.asarray(batch.num_segments)[0])


@functools.cache
def walk() -> Setup:
    policy = gaussian_policy(3, 1, hidden=(8,), initial_log_std=0.2)
    rng = np.random.default_rng(0)
    structure = jax.eval_shape(policy.init, jax.random.PRNGKey(1))
    params = jax.tree.map(lambda leaf: (0.5 * rng.normal(size=leaf.shape)).astype(np.float32), structure)
    return make_setup(WalkEnvironment(), policy, params)


@functools.cache
def hopper() -> Setup:
    """A policy that depends on the observation without sums, whose rounding depends on the number of environments."""
    env = make_env("Hopper-v5")

    def apply(params, obs):
        mean = params * obs[..., : env.action_size]
        return Gaussian(mean, jnp.full_like(mean, -0.5))

    policy = Policy(lambda key: jnp.float32(0.7), apply, env.action_size, Gaussian.draw_noise)
    return make_setup(env, policy, np.float32(0.7))


SETUPS = {"walk": walk, "hopper": hopper}


def assert_same(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def flatten(batch: Batch):
    """Returns [time, env, ...] of the segments with data."""
    return jax.tree.map(lambda leaf: leaf[: batch.num_segments].reshape(-1, *leaf.shape[2:]), batch.steps)


def test_physics_is_bit_identical_for_any_number_of_environments():
    """Four environments together, or two and two; no episode ends."""
    made = hopper()
    actions = np.random.default_rng(0).uniform(-0.3, 0.3, (6, ENVS, made.env.action_size)).astype(np.float32)

    @jax.jit
    def run(state, actions):
        return jax.lax.scan(lambda state, action: (made.env.step(state, action),) * 2, state, actions)[1]

    together = run(made.start.env, actions)
    assert not np.any(together.terminated | together.truncated)
    for part in (slice(0, 2), slice(2, 4)):
        alone = run(jax.tree.map(lambda leaf, part=part: leaf[part], made.start.env), actions[:, part])
        for name in ("physics", "obs", "final_obs", "elapsed", "key"):
            np.testing.assert_array_equal(getattr(alone, name), getattr(together, name)[:, part], err_msg=name)
        np.testing.assert_allclose(alone.reward, together.reward[:, part], rtol=1e-5)


@pytest.mark.parametrize("setup", ["walk", "hopper"])
def test_one_and_two_actors_collect_the_same(setup):
    """Up to rounding, because XLA's code for a policy depends on the number of environments.

    The order of summation in a matrix product depends on its shape: layers with several outputs round alike from two
    rows (environments) on, layers with one output, such as the last of a policy with one action, only from eight. In
    some releases of JAX, this holds for chains of elementwise operations, too. Actions then differ in the last digit,
    and contacts amplify the difference with every step, so only the first segment is compared.
    """
    (_, one), (_, two) = (collect(setup, count, num_segments=1) for count in (1, 2))
    for name in ("obs", "action", "reward", "final_obs"):
        np.testing.assert_allclose(getattr(two.steps, name)[0], getattr(one.steps, name)[0], atol=1e-4)
    for name in ("terminated", "truncated", "invalid", "elapsed"):
        np.testing.assert_array_equal(getattr(two.steps, name), getattr(one.steps, name))


@pytest.mark.parametrize("setup", ["walk", "hopper"])
def test_fewer_segments_are_a_prefix_of_more(setup):
    _, many = collect(setup)
    for num in (1, 3):
        _, few = collect(setup, num_segments=num)
        assert_same(*(jax.tree.map(lambda leaf, num=num: leaf[:num], batch.steps) for batch in (few, many)))


@pytest.mark.parametrize("setup", ["walk", "hopper"])
def test_consecutive_batches_equal_one_long_batch(setup):
    after_all, many = collect(setup)
    halfway, first_part = collect(setup, num_segments=2)
    after, second_part = collect(setup, num_segments=3, state=halfway)
    parts = jax.tree.map(lambda a, b: np.concatenate([a[:2], b[:3]]), first_part.steps, second_part.steps)
    assert_same(parts, many.steps)
    assert_same(after, after_all)


def test_segments_without_data_are_zero():
    _, batch = collect("walk", num_segments=2)
    for leaf in jax.tree.leaves(batch.steps):
        assert not np.any(leaf[2:])
    assert batch.num_segments == 2


def test_number_of_segments_does_not_recompile():
    made, group = walk(), actors(1)
    state, learner = group.split_envs(made.start), group.replicate(made.learner)
    compiled("walk", 1)(state, learner, np.full(1, SEGMENTS, np.int32))
    with counted_compilations() as programs:
        for num in (1, 2, 4):
            compiled("walk", 1)(state, learner, np.full(1, num, np.int32))
    assert not programs


def test_elapsed_and_episode_return_match_plain_loop():
    """Over six consecutive batches with terminations, full and short time limits, and invalid steps."""
    state, whole = None, WalkEnvironment.episode_length
    elapsed, total = np.zeros(ENVS, int), np.zeros(ENVS)
    share = np.array([(i + 1) * whole // ENVS for i in range(ENVS)])
    limit, spread = share.copy(), np.ones(ENVS, bool)
    seen = dict.fromkeys(("terminated", "truncated", "invalid"), 0)
    lengths = set()
    for _ in range(6):
        state, batch = collect("walk", state=state)
        steps = flatten(batch)
        for t in range(len(steps.reward)):
            np.testing.assert_array_equal(steps.elapsed[t], elapsed)
            total += steps.reward[t]
            done = steps.terminated[t] | steps.truncated[t]
            finished = done & ~steps.invalid[t] & (limit == whole)
            np.testing.assert_allclose(steps.episode_return[t], np.where(finished, total, np.nan), rtol=1e-5)
            # Only a time limit or an invalid step truncates.
            np.testing.assert_array_equal(
                steps.truncated[t],
                steps.invalid[t] | ((elapsed == limit - 1) & ~steps.terminated[t]),
            )
            for env in np.flatnonzero(done):
                survived = steps.truncated[t, env] and not steps.invalid[t, env]
                lengths |= {limit[env]} if survived else set()
                limit[env] = share[env] if survived and not spread[env] else whole
                spread[env] = survived
            elapsed, total = np.where(done, 0, elapsed + 1), np.where(done, 0, total)
        for name in seen:
            seen[name] += np.sum(getattr(steps, name))
        seen["truncated"] -= np.sum(steps.invalid)
        np.testing.assert_allclose(state.episode_return, total, rtol=1e-5)
    assert min(seen.values()) > 0
    assert lengths == {*share}


def test_final_obs_is_the_observation_before_the_reset():
    _, batch = collect("walk")
    steps = flatten(batch)
    done = (steps.terminated | steps.truncated)[:-1]
    following = steps.obs[1:]
    np.testing.assert_array_equal(steps.final_obs[:-1][~done], following[~done])
    # After the end of an episode, the next observation is the first of a new one, without a last action.
    assert np.all(following[done][:, 1] == 0)
    assert np.all(np.abs(steps.final_obs[steps.terminated][:, 0]) > 2)
    # An invalid step keeps the observation.
    np.testing.assert_array_equal(steps.final_obs[steps.invalid], steps.obs[steps.invalid])
    assert np.all(steps.reward[steps.invalid] == 0)
    whole = ~steps.invalid
    np.testing.assert_allclose(steps.reward[whole], 1 + steps.final_obs[whole][:, 0], rtol=1e-6)


def test_batch_holds_unclipped_actions_in_policy_units():
    _, batch = collect("walk")
    steps = flatten(batch)
    assert np.any(steps.action > 1)
    assert np.any(steps.action < -1)
    whole = ~steps.invalid
    received = steps.final_obs[whole][:, 1]  # the environment observes the action that it received
    low, high = WalkEnvironment.action_low, WalkEnvironment.action_high
    expected = low + (np.clip(steps.action[whole][:, 0], -1, 1) + 1) / 2 * (high - low)
    np.testing.assert_allclose(received, expected, atol=1e-6)


def implied_noise(setup: str, batch: Batch, learner: LearnerState) -> np.ndarray:
    """Computes (action - mean) / std under a policy and moments, with explicit normalisation."""
    steps, made = flatten(batch), SETUPS[setup]()
    obs = np.clip((steps.obs - learner.obs_moments.mean) / np.sqrt(learner.obs_moments.variance), -10, 10)
    distribution = made.policy.apply(learner.policy, jnp.asarray(obs, jnp.float32))
    return (steps.action - np.asarray(distribution.mean)) / np.exp(distribution.log_std)


def test_log_probabilities_match_those_of_noise_under_the_acting_moments():
    """Two policies with the same keys draw the same noise, which can be recovered only with the right moments."""
    made = walk()
    other_policy = jax.tree.map(lambda leaf: np.asarray(-0.7 * leaf + 0.1, np.float32), made.learner.policy)
    other_moments = Moments(np.float32(5), np.float32([1.0, 0.0, -1.0]), np.float32([0.1, 4.0, 1.0]))
    other = LearnerState(other_policy, (), other_moments, ())
    batch, other_batch = (collect("walk", learner=learner)[1] for learner in (made.learner, other))
    noise, other_noise = implied_noise("walk", batch, made.learner), implied_noise("walk", other_batch, other)
    np.testing.assert_allclose(noise, other_noise, atol=1e-4)
    wrong = implied_noise("walk", batch, made.learner._replace(obs_moments=other_moments))
    assert np.max(np.abs(wrong - noise)) > 0.1

    steps = flatten(batch)
    obs = np.clip((steps.obs - made.learner.obs_moments.mean) / np.sqrt(made.learner.obs_moments.variance), -10, 10)
    distribution = made.policy.apply(made.learner.policy, jnp.asarray(obs, jnp.float32))
    expected = np.sum(stats.norm.logpdf(other_noise) - np.asarray(distribution.log_std), axis=-1)
    np.testing.assert_allclose(log_prob(distribution, jnp.asarray(steps.action)), expected, atol=1e-3)


def test_noise_is_standard_normal_and_never_reused():
    """Across environments, steps, segments and batches."""
    made, state, noise = walk(), None, []
    for _ in range(25):
        state, batch = collect("walk", state=state)
        noise.append(implied_noise("walk", batch, made.learner)[..., 0])
    noise = np.concatenate(noise)
    assert len(np.unique(np.round(noise, 3))) > 0.5 * noise.size
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-3
    between = np.corrcoef(noise.T) - np.eye(ENVS)
    assert np.max(np.abs(between)) < 0.15
    for lag in (1, LENGTH, SEGMENTS * LENGTH):
        assert abs(np.mean(noise[lag:] * noise[:-lag])) < 0.1


def test_noise_and_environments_have_different_keys():
    received = []

    class Recording(WalkEnvironment):
        def reset(self, key, num_envs):
            received.append(key)
            return super().reset(key, num_envs)

    state = start_actors(Recording(), jax.random.PRNGKey(3), ENVS)
    keys = np.concatenate([env_keys(received[0], ENVS), state.noise_key])
    assert len(np.unique(keys, axis=0)) == 2 * ENVS


def test_initial_states_differ_and_depend_only_on_key_and_index():
    """They do not depend on the number of environments."""
    few, many = (jax.device_get(start_actors(WalkEnvironment(), jax.random.PRNGKey(3), n)) for n in (2, 5))
    few, many = (state._replace(time_limits=()) for state in (few, many))  # limits depend on the number of environments
    assert_same(jax.tree.map(lambda leaf: leaf[:2], many), few)
    assert len(np.unique(many.env.obs[:, 0])) == 5
    assert len(np.unique(many.noise_key, axis=0)) == 5
    other = start_actors(WalkEnvironment(), jax.random.PRNGKey(4), 2)
    assert np.all(np.asarray(other.env.obs[:, 0]) != few.env.obs[:, 0])
