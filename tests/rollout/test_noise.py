"""Noise that is correlated over time, against a plain loop, as collected and in whole runs."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from flax import linen as nn
from scipy import stats
from support import actors, undeal
from test_collect import ENVS, LENGTH, SEGMENTS, WalkEnvironment, assert_same, implied_noise, walk

import jaxtrpo
from jaxtrpo.envs.base import env_keys
from jaxtrpo.parallel.actors import join_envs
from jaxtrpo.policies.distributions import Gaussian
from jaxtrpo.rollout.collect import make_collect, start_actors
from jaxtrpo.rollout.noise import correlated, first_noise
from jaxtrpo.rollout.types import Batch

CORRELATION = 0.8


def noise_of(correlation, count=1, batches=1):
    """Returns the noise of consecutive batches [time, env], recovered from actions, and the actors' final state."""
    made, group = walk(), actors(count)
    size = 1 if correlation else None
    state = jax.jit(lambda key: start_actors(WalkEnvironment(), key, ENVS, noise_size=size))(jax.random.PRNGKey(0))
    start = state.noise
    sizes = {"segment_length": LENGTH, "max_segments": SEGMENTS}
    collect = group.map(make_collect(made.env, made.policy, noise_correlation=correlation, **sizes))
    state, learner, found = group.split_envs(jax.device_get(state)), group.replicate(made.learner), []
    for _ in range(batches):
        state, batch = collect(state, learner, np.full(count, SEGMENTS, np.int32))
        whole = Batch(jax.tree.map(undeal, batch.steps), np.asarray(batch.num_segments)[0])
        found.append(implied_noise("walk", whole, made.learner)[..., 0])
    return np.concatenate(found), join_envs(state), np.asarray(start)


def test_noise_follows_the_recursion_from_step_to_step_through_segments_and_batches():
    independent, _, _ = noise_of(0.0, batches=2)
    found, state, before = noise_of(CORRELATION, batches=2)
    before = before[:, 0]
    for now, new in zip(found, independent, strict=True):
        before = CORRELATION * before + math.sqrt(1 - CORRELATION**2) * new
        np.testing.assert_allclose(now, before, atol=2e-4)
    np.testing.assert_allclose(state.noise[:, 0], found[-1], atol=2e-4)


def test_noise_stays_standard_normal_and_its_correlation_falls_geometrically():
    found, _, _ = noise_of(CORRELATION, batches=100)
    assert len(found) == 100 * SEGMENTS * LENGTH
    assert stats.kstest(found[::20].ravel(), "norm").pvalue > 1e-3
    for lag in (1, 2, 3, LENGTH, 20):
        assert np.mean(found[lag:] * found[:-lag]) == pytest.approx(CORRELATION**lag, abs=0.06)
    assert np.max(np.abs(np.corrcoef(found.T) - np.eye(ENVS))) < 0.15


def test_the_first_step_has_the_same_distribution_as_all_others():
    """Noise that begins at zero would begin with a standard deviation of 0.6."""
    keys = env_keys(jax.random.PRNGKey(5), 4000)
    before = first_noise(keys, 2)
    fresh = jax.random.normal(jax.random.PRNGKey(6), (1, 4000, 2))
    first, last = correlated(fresh, before, CORRELATION)
    np.testing.assert_array_equal(first[-1], last)
    for values in (before, first):
        assert stats.kstest(np.ravel(values), "norm").pvalue > 1e-3
    assert abs(np.corrcoef(np.asarray(before).T)[0, 1]) < 0.05
    independent = jax.vmap(lambda key: jax.random.normal(key, (2,)))(jax.vmap(jax.random.split)(keys)[:, 0])
    assert abs(np.corrcoef(np.ravel(before), np.ravel(independent))[0, 1]) < 0.05


def test_two_actors_draw_what_one_draws():
    (one, state, _), (two, of_two, _) = noise_of(CORRELATION), noise_of(CORRELATION, count=2)
    np.testing.assert_allclose(two, one, atol=2e-4)
    np.testing.assert_allclose(of_two.noise, state.noise, atol=1e-5)


def test_independent_noise_is_not_carried():
    assert start_actors(WalkEnvironment(), jax.random.PRNGKey(0), ENVS).noise == ()
    _, state, _ = noise_of(0.0)
    assert state.noise == ()


SMALL = {"num_envs": 4, "segment_length": 8, "steps_per_update": 64, "actors": 1, "progress": False}


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("InvertedPendulum-v5", {"algorithm": "trpo", "policy": "mlp(hidden=(8,))"}),
        ("InvertedPendulum-v5", {"algorithm": "ppo", "policy": "gru(hidden=8)"}),
        ("InvertedPendulum-v5", {"algorithm": "naf(replay_ratio=0.1)"}),
        ("InvertedPendulum-v5", {"algorithm": "sac(replay_ratio=0.1)", "policy": "squashed(hidden=(8,))"}),
    ],
    ids=lambda value: value["algorithm"] if isinstance(value, dict) else value,
)
def test_a_resumed_run_is_an_uninterrupted_one_to_the_bit(env, settings, tmp_path):
    settings = {**SMALL, **settings, "noise_correlation": 0.7, "adapt": "fixed"}
    whole = jaxtrpo.train(env, total_steps=256, out=tmp_path / "whole", **settings)
    jaxtrpo.train(env, total_steps=128, out=tmp_path / "parts", **settings)
    resumed = jaxtrpo.train(env, total_steps=256, out=tmp_path / "parts", resume=True, **settings)
    assert_same(jax.device_get(resumed.state), jax.device_get(whole.state))
    assert np.all(np.asarray(whole.state.actors.noise) != 0)


def test_a_run_with_independent_noise_is_not_resumed_with_correlated_noise(tmp_path):
    settings = {**SMALL, "total_steps": 64, "policy": "mlp(hidden=(8,))", "out": tmp_path}
    jaxtrpo.train("InvertedPendulum-v5", **settings)
    with pytest.raises(ValueError, match="the run has noise_correlation=0.0, not noise_correlation=0.5"):
        jaxtrpo.train("InvertedPendulum-v5", **settings, noise_correlation=0.5, resume=True)


def test_it_changes_what_is_collected():
    settings = {**SMALL, "total_steps": 128, "policy": "mlp(hidden=(8,))"}
    plain, pushed = (
        jaxtrpo.train("InvertedPendulum-v5", **settings, noise_correlation=correlation) for correlation in (0.0, 0.9)
    )
    assert not np.array_equal(plain.state.actors.env.obs, pushed.state.actors.env.obs)
    np.testing.assert_array_equal(plain.state.actors.noise_key, pushed.state.actors.noise_key)


def test_noise_goes_on_through_whole_episodes():
    """Guided policy search starts every batch anew, but not its noise."""
    settings = {"algorithm": "gps(conditions=2, samples=3, horizon=10)", "actors": 1, "progress": False}
    once, twice = (
        jaxtrpo.train("InvertedPendulum-v5", total_steps=steps, noise_correlation=0.7, **settings)
        for steps in (60, 120)
    )
    assert once.state.actors.noise.shape == (1, 6, 1)
    assert not np.any(once.state.actors.noise == twice.state.actors.noise)


class WithUniformNoise(Gaussian):
    """A distribution whose noise is not normal."""

    @staticmethod
    def draw_noise(key, shape):
        return jax.random.uniform(key, shape, minval=-1.0)


class Plain(nn.Module):
    """A network with actions of that distribution."""

    @nn.compact
    def __call__(self, obs):
        mean = nn.Dense(1)(obs)
        return WithUniformNoise(mean, 0 * mean)


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        ("CartPole-v1", {}, "noise_correlation=0.5 needs continuous actions, but those of CartPole-v1 are discrete"),
        (
            "InvertedPendulum-v5",
            {"policy": Plain()},
            "draws noise of its own, which cannot be correlated",
        ),
    ],
)
def test_what_cannot_be_correlated_is_refused(env, settings, message):
    with pytest.raises(ValueError, match=message):
        jaxtrpo.train(env, noise_correlation=0.5, progress=False, **settings)
