"""One whole update of the learner: order of changes, several actors, and non-finite values."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import actors, counted_compilations, deal_batch, first, learner_of, random_batch, spread

import jaxtrpo.parallel.collectives
from jaxtrpo.algorithms.trpo import no_memory, trpo
from jaxtrpo.critics.critic import Critic
from jaxtrpo.critics.linear import linear_critic
from jaxtrpo.critics.mlp import mlp_critic
from jaxtrpo.ops.moments import Moments
from jaxtrpo.ops.running_mean import RunningMean
from jaxtrpo.policies.distributions import Gaussian
from jaxtrpo.policies.networks import LAST, gaussian_policy
from jaxtrpo.rollout.types import Batch, LearnerState

POLICY, CRITIC = gaussian_policy(3, 2, hidden=(8,)), linear_critic(3)
FITTED_BY_ONE = mlp_critic(3, hidden=(8,), minibatch_size=16)
MOMENTS = Moments(np.float32(100), np.float32([0.5, 0.0, -0.5]), np.float32([4.0, 1.0, 0.25]))


def make_learn(critic: Critic, **settings):
    return learner_of(trpo(**settings), POLICY, critic).learn


def bounds(max_kl: float, count: int) -> dict:
    return {"max_kl": np.full(count, max_kl, np.float32)}


@functools.cache
def mapped(count: int, critic: Critic = CRITIC):
    # Few iterations, so that rounding differences between one and two actors stay small.
    return actors(count).map(make_learn(critic, cg_iterations=4))


@functools.cache
def learner(critic: Critic = CRITIC) -> LearnerState:
    rng = np.random.default_rng(0)
    structure = jax.eval_shape(POLICY.init, jax.random.PRNGKey(0))
    params = jax.tree.map(lambda leaf: (0.5 * rng.normal(size=leaf.shape)).astype(np.float32), structure)
    fitted = rng.normal(size=9).astype(np.float32)
    if critic is not CRITIC:
        fitted = jax.device_get(jax.jit(critic.init)(jax.random.PRNGKey(0)))
    return LearnerState(params, fitted, MOMENTS, no_memory(params))


def learn(batch: Batch, count: int = 1, *, max_kl: float = 0.01, critic: Critic = CRITIC):
    key = spread(jax.random.PRNGKey(1), count)
    return mapped(count, critic)(spread(learner(critic), count), deal_batch(batch, count), bounds(max_kl, count), key)


def acted(seed: int, **options) -> Batch:
    """Returns a batch with actions sampled from the learner's policy under its moments."""
    batch = random_batch(seed, **options)
    obs = np.clip((batch.steps.obs - MOMENTS.mean) / np.sqrt(MOMENTS.variance), -10, 10)
    distribution = POLICY.apply(learner().policy, jnp.asarray(obs, jnp.float32))
    noise = np.random.default_rng(seed).normal(size=batch.steps.action.shape)
    action = np.asarray(distribution.mean) + np.exp(distribution.log_std) * noise
    return batch._replace(steps=batch.steps._replace(action=np.float32(action)))


def test_observation_moments_include_valid_steps():
    """The result matches moments of the 100 previous observations and the new ones together."""
    batch = acted(1, num_segments=3, broken=0.2)
    new, _ = learn(batch)
    found = first(new).obs_moments
    counts = ~batch.steps.invalid[:3]
    seen = batch.steps.obs[:3][counts].astype(np.float64)
    total = 100 + len(seen)
    mean = (100 * MOMENTS.mean + seen.sum(0)) / total
    squares = (100 * (MOMENTS.variance + MOMENTS.mean**2) + (seen**2).sum(0)) / total
    assert found.count == total
    np.testing.assert_allclose(found.mean, mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.variance, squares - mean**2, rtol=1e-4)


def test_kl_is_computed_with_the_moments_that_acted():
    """The reported KL is computed at observations normalised with the previous moments."""
    batch = acted(2, broken=0.0)
    new, info = map(first, learn(batch))
    kls = []
    for moments in (MOMENTS, new.obs_moments):
        obs = jnp.asarray(np.clip((batch.steps.obs - moments.mean) / np.sqrt(moments.variance), -10, 10), jnp.float32)
        old, now = POLICY.apply(learner().policy, obs), POLICY.apply(new.policy, obs)
        shift, ratio = (old.mean - now.mean) / jnp.exp(now.log_std), old.log_std - now.log_std
        kls.append(float(jnp.mean(jnp.sum((jnp.exp(2 * ratio) - 1 + shift**2) / 2 - ratio, axis=-1))))
    np.testing.assert_allclose(info["kl"], kls[0], rtol=1e-3)
    assert abs(kls[1] / kls[0] - 1) > 0.01


def one_and_two(critic: Critic) -> list:
    """Returns the results of one actor and of two, which must agree with each other."""
    found = [learn(acted(3, num_segments=3), count, critic=critic) for count in (1, 2)]
    for leaf in jax.tree.leaves(found[1]):
        np.testing.assert_array_equal(leaf[0], leaf[1])
    return list(map(first, found))


def test_update_does_not_depend_on_number_of_actors():
    one, two = one_and_two(CRITIC)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4), two[0], one[0])
    np.testing.assert_allclose(two[1]["explained_variance"], one[1]["explained_variance"], rtol=1e-4)


@pytest.mark.parametrize(
    "most_flops", [jaxtrpo.parallel.collectives.MOST_FLOPS_ALONE, 0.0], ids=["split up", "together"]
)
def test_update_with_split_tasks_does_not_depend_on_number_of_actors(most_flops, monkeypatch):
    monkeypatch.setattr(jaxtrpo.parallel.collectives, "MOST_FLOPS_ALONE", most_flops)
    mapped.cache_clear()
    one, two = one_and_two(FITTED_BY_ONE)
    mapped.cache_clear()
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-3, atol=2e-4), two, one)
    bias, before = (of.critic.params["params"][LAST]["bias"] for of in (one[0], learner(FITTED_BY_ONE)))
    assert bias != before


def program_of_two(critic: Critic, cg_iterations: int = 4) -> jax.stages.Lowered:
    learn = actors(2).map(make_learn(critic, cg_iterations=cg_iterations))
    before, key = (spread(leaf, 2) for leaf in (learner(critic), jax.random.PRNGKey(1)))
    return learn.lower(before, deal_batch(acted(3), 2), bounds(0.01, 2), key)


def split_up(critic: Critic, cg_iterations: int = 4) -> bool:
    """Returns whether two actors split tasks, in which case the program reads their partition id."""
    return "stablehlo.partition_id" in program_of_two(critic, cg_iterations).as_text()


def test_split_actors_use_two_collectives():
    """Between processes a collective takes a millisecond or more: one gathers samples, one shares results."""
    compiled = program_of_two(FITTED_BY_ONE).compile().as_text()
    assert compiled is not None
    assert len(re.findall(r" all-gather(?:-start)?\(", compiled)) == 1
    assert len(re.findall(r" all-reduce(?:-start)?\(", compiled)) == 1


def test_actors_split_if_critic_fit_is_long_but_not_too_long(monkeypatch):
    assert split_up(FITTED_BY_ONE)
    assert not split_up(CRITIC)  # actors share this fit
    assert not split_up(mlp_critic(3, hidden=(8,), epochs=1), cg_iterations=100)  # the policy step takes longer
    monkeypatch.setattr(jaxtrpo.parallel.collectives, "MOST_FLOPS_ALONE", 1e3)
    assert not split_up(FITTED_BY_ONE)


either_way = pytest.mark.parametrize("count, critic", [(1, CRITIC), (2, FITTED_BY_ONE)], ids=["one", "split up"])


@either_way
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_rewards_leave_policy_and_critic_unchanged(bad, count, critic):
    batch = acted(4)
    batch.steps.reward[0, 0, 0] = bad
    new, info = map(first, learn(batch, count, critic=critic))
    jax.tree.map(np.testing.assert_array_equal, new.policy, learner().policy)
    jax.tree.map(np.testing.assert_array_equal, new.critic, learner(critic).critic)
    assert not info["accepted"]


@either_way
def test_number_of_segments_and_kl_bound_are_traced(count, critic):
    batches = [acted(seed, num_segments=num) for seed, num in ((1, 4), (2, 1), (3, 2))]
    max_kls = (1e-3, 1e-2, 0.1)
    learn(batches[0], count, critic=critic)
    with counted_compilations() as compiled:
        both = zip(batches, max_kls, strict=True)
        kls = [first(learn(batch, count, max_kl=bound, critic=critic)[1])["kl"] for batch, bound in both]
    assert not compiled
    assert 0 < kls[0] <= 1e-3 < kls[1] <= 1e-2 < kls[2] <= 0.1


def test_smaller_advantages_than_usual_shrink_trust_region():
    """Half the advantages have a quarter of the variance, so a quarter of the KL; larger ones change nothing."""
    batch = acted(7, broken=0.0)
    _, info = map(first, learn(batch))
    variance = float(info["advantage_std"]) ** 2
    long = actors(1).map(make_learn(CRITIC, cg_iterations=4, advantage_memory=10**6))

    def after(usual: float):
        # After this many updates, one more hardly changes the mean.
        memory = learner().memory._replace(advantage_variance=RunningMean(np.float32(usual), np.int32(10**6)))
        before = learner()._replace(memory=memory)
        key = spread(jax.random.PRNGKey(1), 1)
        return map(first, long(spread(before, 1), deal_batch(batch, 1), bounds(0.01, 1), key))

    _, smaller = after(4 * variance)
    _, quarter = map(first, learn(batch, max_kl=0.0025))
    np.testing.assert_allclose(smaller["kl"], quarter["kl"], rtol=1e-3)
    _, larger = after(variance / 4)
    np.testing.assert_allclose(larger["kl"], info["kl"], rtol=1e-3)


def test_policy_std_covers_only_filled_segments():
    def init(key):
        return jnp.ones(1)

    def apply(params, obs):
        return Gaussian(obs[..., :2], obs[..., :2] * params)

    batch = acted(4, num_segments=2, broken=0.0)
    batch.steps.obs[2:] = np.nan
    learner = learner_of(trpo(), POLICY._replace(init=init, apply=apply, apply_for_products=None), CRITIC)
    state = learner.init(jax.random.PRNGKey(0), jax.random.PRNGKey(1))._replace(obs_moments=MOMENTS)
    _, info = actors(1).map(learner.learn)(
        spread(jax.device_get(state), 1), deal_batch(batch, 1), bounds(1e-9, 1), spread(jax.random.PRNGKey(0), 1)
    )
    seen = (batch.steps.obs[0, ..., :2] - MOMENTS.mean[:2]) / np.sqrt(MOMENTS.variance[:2])
    np.testing.assert_allclose(first(info)["policy_std"], np.exp(seen).mean(), rtol=1e-3)


def test_policy_std_is_that_of_new_policy():
    new, info = map(first, learn(acted(5)))
    np.testing.assert_allclose(info["policy_std"], np.mean(np.exp(new.policy["params"]["log_std"])), rtol=1e-5)
