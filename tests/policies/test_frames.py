"""Frame stacks."""

from __future__ import annotations

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from camera_env import Camera

from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.envs.observation_space import Leaf, ObservationSpace, flat_space
from jaxtrpo.ops.moments import Moments
from jaxtrpo.policies.cnn import cnn
from jaxtrpo.policies.frames import stacking, stacking_policy, stacks
from jaxtrpo.policies.networks import mlp
from jaxtrpo.policies.recurrence import Sequences
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.policies.value_head import scaled_values


def gymnasiums(env: gymnasium.Env, frames: int, steps: int):
    """Observations of episodes one after another, where each begins, and the stacks that Gymnasium makes of them."""
    stacked = gymnasium.wrappers.FrameStackObservation(env, frames)
    obs, _ = stacked.reset(seed=3)
    found, first, over = [], [], True
    for _ in range(steps):
        found.append(obs)
        first.append(over)
        obs, _, terminated, truncated, _ = stacked.step(0)
        over = terminated or truncated
        if over:
            obs, _ = stacked.reset()
    return np.array(found), np.array(first)


class Counting(gymnasium.Env):
    """Observes two numbers, one of which counts."""

    observation_space = gymnasium.spaces.Box(-100, 100, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.length = self.np_random.integers(50), self.np_random.integers(1, 7)
        return np.array([self.count, -self.count], np.float32), {}

    def step(self, action):
        self.count, self.length = self.count + 1, self.length - 1
        return np.array([self.count, -self.count], np.float32), 0.0, self.length == 0, False, {}


@pytest.mark.parametrize("frames", [2, 4])
@pytest.mark.parametrize("make", [Camera, Counting])
def test_stacks_are_those_of_gymnasium(make, frames):
    wanted, first = gymnasiums(make(), frames, 24)
    newest = wanted[:, -1]
    along = np.moveaxis(wanted, 1, -2).reshape(*newest.shape[:-1], -1)  # from the oldest on, along the last axis
    name, dtype = ("image", "uint8") if make is Camera else ("vector", "float32")
    space = ObservationSpace((Leaf(name, newest.shape[1:], dtype),), frames)
    obs = space.joined({name: jnp.asarray(newest)})
    apply, recurrence = stacking(lambda params, stacked: stacked, space)
    carry = recurrence.start(1)
    # Step by step, as when acting; and in stretches of five steps, which begin in the middle of episodes.
    begun = carry
    for t in range(len(first)):
        one = jax.tree.map(lambda leaf, t=t: leaf[t : t + 1], obs)
        seen, carry = recurrence.step((), carry, one, jnp.asarray(first[t : t + 1]))
        np.testing.assert_array_equal(jax.tree.leaves(seen)[0][0], along[t])
    for start in range(0, len(first), 5):
        part = jax.tree.map(lambda leaf, start=start: jnp.asarray(leaf[start : start + 5, None]), obs)
        inputs = Sequences(part, jnp.asarray(first[start : start + 5, None]), begun)
        seen, carries = recurrence.unroll((), inputs)
        np.testing.assert_array_equal(jax.tree.leaves(seen)[0][:, 0], along[start : start + 5])
        assert jax.tree.leaves(apply((), inputs))[0].dtype == newest.dtype
        begun = jax.tree.map(lambda leaf: leaf[-1], carries)


def test_environments_are_independent():
    rng = np.random.default_rng(0)
    obs, first = rng.normal(size=(6, 3, 2)).astype(np.float32), rng.random((6, 3)) < 0.3
    before = rng.normal(size=(3, 2, 2)).astype(np.float32)
    together, _ = stacks(Sequences(jnp.asarray(obs), jnp.asarray(first), jnp.asarray(before)))
    for env in range(3):
        alone, _ = stacks(
            Sequences(jnp.asarray(obs[:, [env]]), jnp.asarray(first[:, [env]]), jnp.asarray(before[[env]]))
        )
        np.testing.assert_array_equal(together[:, [env]], alone)


@pytest.mark.parametrize("step", [lambda policy, obs: policy(obs), lambda policy, obs: policy.step(None, obs)[0]])
def test_first_action_of_a_trained_policy_sees_its_first_observation_repeated(step):
    space, actions = flat_space(2)._replace(frames=3), ActionSpace(-np.ones(1, np.float32), np.ones(1, np.float32))
    network = mlp(hidden=(5,)).make(space, actions)
    params = jax.tree.map(lambda leaf: leaf + 0.1, network.init(jax.random.PRNGKey(0)))
    moments = Moments(np.float32(1e6), np.zeros(2, np.float32), np.ones(2, np.float32))
    policy = TrainedPolicy("Some-v1", 2, actions, mlp(hidden=(5,)), params, moments, observation_space=space)
    obs = np.float32([[0.3, -1], [2, 0.5]])
    wanted = network.apply(params, jnp.concatenate([obs] * 3, axis=-1)).mode()
    for _ in range(2):
        np.testing.assert_allclose(step(policy, obs), wanted, rtol=1e-6)
        policy.reset()
    policy(obs)
    assert np.abs(policy(-obs) - network.apply(params, jnp.concatenate([-obs] * 3, axis=-1)).mode()).max() > 0.01


def test_values_of_a_shared_network_see_the_same_stacks_as_its_distributions():
    space = flat_space(2)._replace(frames=3)
    network = mlp(hidden=(5,), shared=True).make(space, ActionSpace(np.zeros(1, int), np.ones(1, int), (2,)))
    policy = stacking_policy(network, space)
    params = jax.tree.map(lambda leaf: leaf + 0.3, policy.init(jax.random.PRNGKey(0)))
    rng = np.random.default_rng(1)
    obs, first = jnp.float32(rng.normal(size=(6, 3, 2))), jnp.asarray(rng.random((6, 3)) < 0.3)
    inputs = Sequences(obs, first, jnp.float32(rng.normal(size=(3, 2, 2))))
    wanted = network.value_head.joint(params, stacks(inputs)[0])
    assert np.std(wanted[1]) > 0
    for found in (
        policy.value_head.joint(params, inputs),
        (policy.apply(params, inputs), policy.value_head.value(params, inputs)),
        (policy.recurrence.unroll(params, inputs)[0], policy.value_head.recurrence.unroll(params, inputs)[0]),
    ):
        jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.mark.parametrize("frames", [1, 2])
def test_convolutional_network_predicts_values_beside_its_distributions(frames):
    space = ObservationSpace((Leaf("image", (8, 8, 2), "uint8"),), frames)
    network = cnn(channels=(4, 4), hidden=8, shared=True).make(
        space, ActionSpace(np.zeros(1, int), np.ones(1, int), (2,))
    )
    rng = np.random.default_rng(1)
    obs = {"image": jnp.asarray(rng.integers(0, 256, (5, 8, 8, 2 * frames), np.uint8))}
    params = network.init(jax.random.PRNGKey(0))
    distribution, value = network.value_head.joint(params, obs)
    assert np.ptp(distribution.logits[0]) > 0 and not np.any(value)  # values are 0 at first
    moved = jax.tree.map(lambda leaf: leaf + 0.1, params)
    value = network.value_head.value(moved, obs)
    assert value.shape == (5,) and np.ptp(value) > 0
    shifted = scaled_values(moved, 2.0, 3.0)
    np.testing.assert_allclose(network.value_head.value(shifted, obs), 2 * value + 3, rtol=1e-4)
    np.testing.assert_array_equal(network.apply(shifted, obs).logits[0], network.apply(moved, obs).logits[0])
