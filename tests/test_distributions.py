"""The action distribution against SciPy, quadrature and sampling."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from jaxtrpo.policies.distributions import Gaussian, entropy, kl_divergence, log_prob, sample, stretch

log_prob_compiled, kl_compiled, entropy_compiled = jax.jit(log_prob), jax.jit(kl_divergence), jax.jit(entropy)
sample_compiled, stretch_compiled = jax.jit(sample), jax.jit(stretch)
seeds = st.integers(0, 2**31)
scales = st.sampled_from([1e-3, 0.1, 1.0, 3.0])


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def random_gaussian(rng, shape=(5, 3), scale=1.0) -> Gaussian:
    return Gaussian(scale * rng.normal(size=shape), scale * rng.normal(size=shape))


def as_float32(distribution: Gaussian) -> Gaussian:
    return Gaussian(*(np.asarray(leaf, np.float32) for leaf in distribution))


@settings(deadline=None, max_examples=30)
@given(seeds, scales)
def test_log_prob_is_that_of_scipy(seed, scale):
    rng = np.random.default_rng(seed)
    distribution = random_gaussian(rng, scale=scale)
    action = rng.normal(size=(5, 3))
    expected = stats.norm(distribution.mean, np.exp(distribution.log_std)).logpdf(action).sum(-1)
    with jax.enable_x64(True):
        np.testing.assert_allclose(log_prob_compiled(distribution, action), expected, rtol=1e-11, atol=1e-11)
    ours = log_prob_compiled(as_float32(distribution), action.astype(np.float32))
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=30)
@given(seeds, scales)
def test_entropy_is_that_of_scipy(seed, scale):
    distribution = random_gaussian(np.random.default_rng(seed), scale=scale)
    expected = stats.norm(distribution.mean, np.exp(distribution.log_std)).entropy().sum(-1)
    with jax.enable_x64(True):
        np.testing.assert_allclose(entropy_compiled(distribution), expected, rtol=1e-12, atol=1e-12)


def test_kl_is_that_of_quadrature(float64):
    rng = np.random.default_rng(0)
    for _ in range(5):
        old, new = random_gaussian(rng, (1,), 0.7), random_gaussian(rng, (1,), 0.7)
        p, q = (stats.norm(d.mean[0], np.exp(d.log_std[0])) for d in (old, new))
        expected, error = integrate.quad(
            lambda x, p=p, q=q: p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), *p.interval(1 - 1e-15), epsabs=1e-12
        )
        np.testing.assert_allclose(kl_compiled(old, new), expected, rtol=1e-8, atol=10 * error)


def test_kl_is_the_mean_log_ratio_of_samples_of_the_old():
    rng = np.random.default_rng(1)
    old, new = random_gaussian(rng, (2,), 0.3), random_gaussian(rng, (2,), 0.3)
    actions = np.asarray(sample_compiled(old, rng.normal(size=(100_000, 2))))
    p, q = (stats.norm(d.mean, np.exp(d.log_std)).logpdf(actions).sum(-1) for d in (old, new))
    np.testing.assert_allclose(kl_compiled(old, new), np.mean(p - q), atol=5 * np.std(p - q) / np.sqrt(len(p)))


@settings(deadline=None, max_examples=50)
@given(seeds, st.sampled_from([1e-30, 1e-3, 1.0, 5.0]))
def test_kl_of_equal_distributions_is_exactly_zero(seed, scale):
    distribution = as_float32(random_gaussian(np.random.default_rng(seed), scale=scale))
    np.testing.assert_array_equal(kl_compiled(distribution, distribution), np.zeros(5))


@settings(deadline=None, max_examples=100)
@given(seeds, st.sampled_from([1e-8, 1e-6, 1e-4, 1e-2, 1.0, 3.0]))
def test_kl_is_not_negative_and_right_however_near_the_distributions(seed, distance):
    """In float32, compared with float64 on the same numbers; lost may be a rounding of the change of log std."""
    rng = np.random.default_rng(seed)
    old = as_float32(random_gaussian(rng, scale=0.5))
    new = as_float32(Gaussian(*(leaf + distance * rng.normal(size=leaf.shape) for leaf in old)))
    exact_old, exact_new = (Gaussian(*(leaf.astype(np.float64) for leaf in d)) for d in (old, new))
    ratio = exact_old.log_std - exact_new.log_std
    shift = (exact_old.mean - exact_new.mean) * np.exp(-exact_new.log_std)
    expected = np.sum(0.5 * (np.expm1(2 * ratio) + shift**2) - ratio, axis=-1)
    kl = kl_compiled(old, new)
    rounding = 4 * np.finfo(np.float32).eps * np.sum(np.abs(ratio), axis=-1)
    assert np.all(kl >= -rounding)
    assert np.all(np.abs(kl - expected) <= 1e-4 * expected + rounding + 1e-15)


def test_sample_moves_and_stretches_noise(float64):
    noise = np.random.default_rng(2).normal(size=(5, 3))
    distribution = random_gaussian(np.random.default_rng(3))
    action = sample_compiled(distribution, noise)
    np.testing.assert_allclose(action, distribution.mean + np.exp(distribution.log_std) * noise, rtol=1e-12)
    expected = stats.norm.logpdf(noise).sum(-1) - distribution.log_std.sum(-1)
    np.testing.assert_allclose(log_prob_compiled(distribution, action), expected, rtol=1e-10)


def test_standard_deviation_may_be_shared_by_all_states(float64):
    rng = np.random.default_rng(4)
    log_std = rng.normal(size=3)
    shared = Gaussian(rng.normal(size=(5, 3)), log_std)
    spread = Gaussian(shared.mean, np.broadcast_to(log_std, (5, 3)))
    other = random_gaussian(rng)
    for few, many in (
        (log_prob_compiled(shared, other.mean), log_prob_compiled(spread, other.mean)),
        (kl_compiled(other, shared), kl_compiled(other, spread)),
        (kl_compiled(shared, other), kl_compiled(spread, other)),
        (entropy_compiled(shared), entropy_compiled(spread)),
    ):
        assert few.shape == (5,)
        np.testing.assert_allclose(few, many, rtol=1e-12)


def test_simulator_units_reach_from_end_to_end_of_its_range():
    low, high = np.float32([-0.4, 0.0]), np.float32([0.4, 10.0])
    action = np.float32([[-1, -1], [0, 0], [1, 1], [0.5, -0.5], [-7, 3]])
    expected = [[-0.4, 0.0], [0.0, 5.0], [0.4, 10.0], [0.2, 2.5], [-0.4, 10.0]]
    np.testing.assert_allclose(stretch_compiled(action, low, high), expected, atol=1e-6)
