"""What networks with memory carry while actors collect, against plain loops."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain_recurrent import network_of, plain_step
from recall_env import RecallEnvironment
from support import actors

from jaxtrpo.config.specs import parse
from jaxtrpo.envs.base import action_space
from jaxtrpo.ops.moments import Moments
from jaxtrpo.parallel.actors import join_envs
from jaxtrpo.rollout.collect import make_collect, start_actors
from jaxtrpo.rollout.types import LearnerState

ENVS, LENGTH, SEGMENTS = 4, 6, 3
ENV = RecallEnvironment()
MOMENTS = Moments(jnp.float32(10), jnp.float32([0.1, 0.2]), jnp.float32([0.7, 0.3]))


@functools.cache
def parts(bptt_steps: int, of_critic: int):
    policy = parse("policy", f"gru(hidden=5, bptt_steps={bptt_steps})").make(2, action_space(ENV))
    critic = parse("critic", f"lstm(hidden=3, encoder=(), bptt_steps={of_critic})").make(2)
    rng = np.random.default_rng(0)

    def random(tree):
        return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), tree)

    state = critic.init(jax.random.PRNGKey(1))
    state = state._replace(params=random(state.params))
    return policy, critic, LearnerState(random(policy.init(jax.random.PRNGKey(0))), state, MOMENTS, ())


def collect_twice(bptt_steps: int, of_critic: int, count: int, numbers=(2, SEGMENTS)):
    """Returns two batches, with the environments of all actors, and the actor state after them."""
    policy, critic, learner = parts(bptt_steps, of_critic)
    group = actors(count)
    recurrences = policy.recurrence, critic.recurrence
    state = group.split_envs(start_actors(ENV, jax.random.PRNGKey(3), ENVS, recurrences))
    collect = group.map(
        make_collect(ENV, policy, segment_length=LENGTH, max_segments=SEGMENTS, critic_recurrence=critic.recurrence)
    )
    batches = []
    for number in numbers:
        state, batch = collect(state, group.replicate(learner), np.full(count, number, np.int32))
        batches.append(batch)
    return batches, state


def joined(leaf, axis: int) -> np.ndarray:
    """Joins the environments of actors, which are the leading axis and `axis`."""
    return np.concatenate(list(np.asarray(leaf)), axis=axis)


@pytest.mark.parametrize("bptt_steps, of_critic", [(3, 6), (4, 12), (5, 1), (100, 7)])
def test_carries_at_the_starts_of_stretches_match_a_plain_loop(bptt_steps, of_critic):
    batches, state = collect_twice(bptt_steps, of_critic, 1)
    _, _, learner = parts(bptt_steps, of_critic)
    networks = {"policy": ("gru", network_of(learner.policy)), "critic": ("lstm", network_of(learner.critic.params))}
    carry = {"policy": (np.zeros((ENVS, 5)),), "critic": (np.zeros((ENVS, 3)),) * 2}
    every = {"policy": bptt_steps, "critic": of_critic}
    for batch in batches:
        number = int(batch.num_segments[0])
        obs = joined(batch.steps.obs, 2)[:number].reshape(-1, ENVS, 2)
        first = joined(batch.steps.elapsed, 2)[:number].reshape(-1, ENVS) == 0
        assert first[0].all() == (batch is batches[0]) and first[1:].any()
        normalised = (obs - np.asarray(MOMENTS.mean)) / np.sqrt(np.asarray(MOMENTS.variance))
        for t in range(number * LENGTH):
            for name, (cell, layers) in networks.items():
                if t % every[name] == 0:
                    kept = getattr(batch.carries, name)
                    for part, wanted in zip(kept, carry[name], strict=True):
                        found = joined(part, 1)[t // every[name]]
                        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
                _, carry[name] = plain_step(layers, cell, carry[name], normalised[t], first[t])
    for name, wanted in carry.items():
        for part, each in zip(getattr(state.carries, name), wanted, strict=True):
            np.testing.assert_allclose(join_envs(part), each, rtol=1e-4, atol=1e-5)


def test_carries_do_not_depend_on_the_number_of_actors():
    one, two = (collect_twice(4, 5, count)[0] for count in (1, 2))
    for ours, theirs in zip(one, two, strict=True):
        np.testing.assert_array_equal(joined(ours.steps.action, 2), joined(theirs.steps.action, 2))
        for a, b in zip(jax.tree.leaves(ours.carries), jax.tree.leaves(theirs.carries), strict=True):
            np.testing.assert_allclose(joined(a, 1), joined(b, 1), rtol=1e-5, atol=1e-6)


def test_networks_without_memory_carry_nothing():
    policy = parse("policy", "mlp").make(2, action_space(ENV))
    state = start_actors(ENV, jax.random.PRNGKey(3), ENVS)
    assert not jax.tree.leaves(state.carries)
    collect = make_collect(ENV, policy, segment_length=LENGTH, max_segments=SEGMENTS)
    learner = LearnerState(policy.init(jax.random.PRNGKey(0)), (), MOMENTS, ())
    state, batch = jax.eval_shape(collect, state, learner, np.int32(1))
    assert not jax.tree.leaves(state.carries) and not jax.tree.leaves(batch.carries)
