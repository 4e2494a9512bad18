"""Action distributions match SciPy, quadrature, decimal arithmetic and sampling."""

from __future__ import annotations

import decimal
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from jaxtrpo.policies.distributions import (
    Categorical,
    Distribution,
    Gaussian,
    entropy,
    fisher_metric,
    kl_divergence,
    log_prob,
    sample,
)

log_prob_compiled, kl_compiled, entropy_compiled = jax.jit(log_prob), jax.jit(kl_divergence), jax.jit(entropy)
sample_compiled = jax.jit(sample)
metric_compiled, mode_compiled = jax.jit(fisher_metric), jax.jit(lambda distribution: distribution.mode())
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
def test_log_prob_matches_scipy(seed, scale):
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
def test_entropy_matches_scipy(seed, scale):
    distribution = random_gaussian(np.random.default_rng(seed), scale=scale)
    expected = stats.norm(distribution.mean, np.exp(distribution.log_std)).entropy().sum(-1)
    with jax.enable_x64(True):
        np.testing.assert_allclose(entropy_compiled(distribution), expected, rtol=1e-12, atol=1e-12)


def test_kl_matches_quadrature(float64):
    rng = np.random.default_rng(0)
    for _ in range(5):
        old, new = random_gaussian(rng, (1,), 0.7), random_gaussian(rng, (1,), 0.7)
        p, q = (stats.norm(d.mean[0], np.exp(d.log_std[0])) for d in (old, new))
        expected, error = integrate.quad(
            lambda x, p=p, q=q: p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), *p.interval(1 - 1e-15), epsabs=1e-12
        )
        np.testing.assert_allclose(kl_compiled(old, new), expected, rtol=1e-8, atol=10 * error)


def test_kl_is_the_mean_log_ratio_of_samples():
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
def test_kl_is_accurate_for_close_distributions(seed, distance):
    """In float32, compared with float64 for the same numbers, up to rounding of the change of log std."""
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


def test_sample_shifts_and_scales_noise(float64):
    noise = np.random.default_rng(2).normal(size=(5, 3))
    distribution = random_gaussian(np.random.default_rng(3))
    action = sample_compiled(distribution, noise)
    np.testing.assert_allclose(action, distribution.mean + np.exp(distribution.log_std) * noise, rtol=1e-12)
    expected = stats.norm.logpdf(noise).sum(-1) - distribution.log_std.sum(-1)
    np.testing.assert_allclose(log_prob_compiled(distribution, action), expected, rtol=1e-10)


def test_log_std_broadcasts_over_states(float64):
    rng = np.random.default_rng(4)
    log_std = rng.normal(size=3)
    shared = Gaussian(rng.normal(size=(5, 3)), log_std)
    repeated = Gaussian(shared.mean, np.broadcast_to(log_std, (5, 3)))
    other = random_gaussian(rng)
    for few, many in (
        (log_prob_compiled(shared, other.mean), log_prob_compiled(repeated, other.mean)),
        (kl_compiled(other, shared), kl_compiled(other, repeated)),
        (kl_compiled(shared, other), kl_compiled(repeated, other)),
        (entropy_compiled(shared), entropy_compiled(repeated)),
    ):
        assert few.shape == (5,)
        np.testing.assert_allclose(few, many, rtol=1e-12)


def test_gaussian_is_bit_identical_to_reference_expressions():
    """All published results were made with these expressions."""

    def old_log_prob(d, action):
        z = (action - d.mean) * jnp.exp(-d.log_std)
        return jnp.sum(-0.5 * z**2 - d.log_std - 0.5 * math.log(2 * math.pi), axis=-1)

    def old_kl(old, new):
        ratio = old.log_std - new.log_std
        shift = (old.mean - new.mean) * jnp.exp(-new.log_std)
        return jnp.sum(0.5 * (jnp.expm1(2 * ratio) + shift**2) - ratio, axis=-1)

    def old_entropy(d):
        log_std = jnp.broadcast_to(d.log_std, d.mean.shape)
        return jnp.sum(log_std + 0.5 * (math.log(2 * math.pi) + 1), axis=-1)

    def old_metric(d, tangent):
        return Gaussian(mean=tangent.mean * jnp.exp(-2 * d.log_std), log_std=2 * tangent.log_std)

    rng = np.random.default_rng(9)
    one, two = (as_float32(random_gaussian(rng, (64, 6))) for _ in range(2))
    alike = one._replace(log_std=np.broadcast_to(one.log_std[0], (64, 6)))  # equal in all states
    noise = rng.normal(size=(64, 6)).astype(np.float32)
    for function, reference, arguments in (
        (sample, lambda d, noise: d.mean + jnp.exp(d.log_std) * noise, (one, noise)),
        (log_prob, old_log_prob, (one, noise)),
        (jax.grad(lambda d, a: log_prob(d, a).sum()), jax.grad(lambda d, a: old_log_prob(d, a).sum()), (one, noise)),
        (kl_divergence, old_kl, (one, two)),
        (entropy, old_entropy, (one,)),
        (fisher_metric, old_metric, (one, two)),
        (lambda d: d.summary()["policy_std"], lambda d: jnp.mean(jnp.exp(d.log_std[0])), (alike,)),
        (lambda d: d.mode(), lambda d: d.mean, (one,)),
    ):
        jax.tree.map(np.testing.assert_array_equal, jax.jit(function)(*arguments), jax.jit(reference)(*arguments))
    key = jax.random.PRNGKey(0)
    np.testing.assert_array_equal(one.draw_noise(key, (5, 6)), jax.random.normal(key, (5, 6)))
    assert one.noise_size == 6


# ---- categorical distributions

COUNTS = [(3,), (2, 5), (1,), (4, 3, 2)]
ALMOST_1 = np.nextafter(np.float32(1), np.float32(0))
counts_of = st.sampled_from(COUNTS)


def random_categorical(rng, counts=(2, 5), shape=(4,), scale=1.0) -> Categorical:
    return Categorical(tuple(scale * rng.normal(size=(*shape, count)) for count in counts))


def as_type(distribution: Categorical, dtype) -> Categorical:
    return Categorical(tuple(logits.astype(dtype) for logits in distribution.logits))


def exact_kl(old: Categorical, new: Categorical) -> float:
    """Computes sum p ln(p/q) of distributions of one state, with 60 digits."""
    with decimal.localcontext(prec=60):
        total = decimal.Decimal(0)
        for logits, others in zip(old.logits, new.logits, strict=True):
            p, q = ([decimal.Decimal(float(x)).exp() for x in values] for values in (logits, others))
            total += sum(a / sum(p) * ((a / sum(p)) / (b / sum(q))).ln() for a, b in zip(p, q, strict=True))
        return float(total)


@settings(deadline=None, max_examples=40)
@given(seeds, counts_of, st.sampled_from([1e-3, 1.0, 30.0]))
def test_categorical_log_prob_and_entropy_match_scipy(seed, counts, scale):
    rng = np.random.default_rng(seed)
    distribution = random_categorical(rng, counts, scale=scale)
    action = np.stack([rng.integers(0, count, 4) for count in counts], axis=-1).astype(np.int32)
    logs = [special.log_softmax(logits, axis=-1) for logits in distribution.logits]
    expected = sum(each[np.arange(4), action[:, i]] for i, each in enumerate(logs))
    expected_entropy = sum(stats.entropy(np.exp(each), axis=-1) for each in logs)
    with jax.enable_x64(True):
        np.testing.assert_allclose(log_prob_compiled(distribution, action), expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(entropy_compiled(distribution), expected_entropy, rtol=1e-11, atol=1e-12)
    single = as_type(distribution, np.float32)
    np.testing.assert_allclose(log_prob_compiled(single, action), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(entropy_compiled(single), expected_entropy, rtol=1e-4, atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(seeds, counts_of, st.sampled_from([1e-3, 1.0, 20.0]))
def test_categorical_kl_is_the_sum_of_p_log_p_over_q(seed, counts, scale):
    rng = np.random.default_rng(seed)
    old, new = (random_categorical(rng, counts, scale=scale) for _ in range(2))
    p, q = ([special.softmax(logits, axis=-1) for logits in d.logits] for d in (old, new))
    expected = sum(special.rel_entr(a, b).sum(-1) for a, b in zip(p, q, strict=True))
    with jax.enable_x64(True):
        np.testing.assert_allclose(kl_compiled(old, new), expected, rtol=1e-9, atol=1e-15)
    single = kl_compiled(as_type(old, np.float32), as_type(new, np.float32))
    # Large changes of logits lose the rounding error of the logits; small ones do not.
    np.testing.assert_allclose(single, expected, rtol=1e-4, atol=1e-10 if scale <= 1 else 1e-6)


@settings(deadline=None, max_examples=50)
@given(seeds, counts_of, st.sampled_from([1e-30, 1e-3, 1.0, 1e3, 1e9]))
def test_categorical_kl_of_equal_distributions_is_exactly_zero(seed, counts, scale):
    distribution = as_type(random_categorical(np.random.default_rng(seed), counts, scale=scale), np.float32)
    twin = Categorical(tuple(logits.copy() for logits in distribution.logits))
    np.testing.assert_array_equal(kl_compiled(distribution, twin), np.zeros(4))


@settings(deadline=None, max_examples=60)
@given(seeds, st.sampled_from([1e-6, 1e-5, 1e-4, 1e-2, 1.0, 10.0]), st.sampled_from([0.0, 0.25, -8.0]))
def test_categorical_kl_is_accurate_for_close_distributions(seed, distance, shift):
    """In float32, compared with 60 digits for the same numbers; a common shift of logits has no effect."""
    rng = np.random.default_rng(seed)
    counts = (5, 3)
    old = random_categorical(rng, counts, (1,))
    new = Categorical(tuple(logits + distance * rng.normal(size=logits.shape) + shift for logits in old.logits))
    old, new = as_type(old, np.float32), as_type(new, np.float32)
    expected = exact_kl(*(Categorical(tuple(logits[0] for logits in d.logits)) for d in (old, new)))
    moved = max(distance, 1e-6 * abs(shift)) * 3
    rounding = 4 * np.finfo(np.float32).eps * moved * sum(counts)
    assert abs(kl_compiled(old, new)[0] - expected) <= 1e-4 * expected + rounding


def test_categorical_kl_of_distant_distributions_and_its_gradient_are_finite():
    @jax.jit
    def all_of(old, new):
        gradients = jax.grad(lambda old, new: kl_divergence(old, new).sum(), argnums=(0, 1))(old, new)
        return gradients, entropy(old), log_prob(old, jnp.asarray([[1]])), fisher_metric(old, new)

    for here, there in (([200.0, 0.0], [0.0, 200.0]), ([-1e9, 1.0], [-1e9, 2.0]), ([1e5, 0.0], [0.0, 0.0])):
        old, new = Categorical((np.float32([here]),)), Categorical((np.float32([there]),))
        p, log_p, log_q = special.softmax(here), special.log_softmax(here), special.log_softmax(there)
        np.testing.assert_allclose(kl_compiled(old, new)[0], np.sum(p * (log_p - log_q)), rtol=1e-6)
        for pair in ((old, new), (new, old)):
            assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(all_of(*pair)))


def textbook_kl(old, new):
    pairs = zip(old.logits, new.logits, strict=True)
    logs = [(jax.nn.log_softmax(a), jax.nn.log_softmax(b)) for a, b in pairs]
    return sum(jnp.sum(jnp.exp(a) * (a - b)) for a, b in logs)


@jax.jit
def hessian_products(at, tangent):
    """Computes Hessian-vector products of the textbook KL and of `kl_divergence`."""

    def product(kl):
        return jax.jvp(jax.grad(lambda new: kl(at, new)), (at,), (tangent,))[1]

    return product(textbook_kl), product(kl_divergence)


@settings(deadline=None, max_examples=20)
@given(seeds, counts_of)
def test_categorical_metric_is_the_hessian_of_the_kl(seed, counts):
    """It is also diag(p) - p p^T, the covariance of the scores."""
    rng = np.random.default_rng(seed)
    at, tangent = (random_categorical(rng, counts, ()) for _ in range(2))
    with jax.enable_x64(True):
        image = metric_compiled(at, tangent)
        for product in hessian_products(at, tangent):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), image, product)
    for logits, t, found in zip(at.logits, tangent.logits, image.logits, strict=True):
        p = special.softmax(logits)
        np.testing.assert_allclose(found, (np.diag(p) - np.outer(p, p)) @ t, rtol=1e-9, atol=1e-12)


def test_gradient_of_categorical_log_prob_is_one_hot_minus_probabilities(float64):
    at = random_categorical(np.random.default_rng(1), (4, 3), ())
    gradient = jax.grad(log_prob)(jax.tree.map(jnp.asarray, at), jnp.asarray([2, 0], jnp.int32))
    for logits, chosen, found in zip(at.logits, (2, 0), gradient.logits, strict=True):
        np.testing.assert_allclose(found, np.eye(len(logits))[chosen] - special.softmax(logits), atol=1e-14)


@pytest.mark.parametrize("counts", COUNTS)
def test_evenly_spaced_noise_reproduces_probabilities(counts):
    """Inversion of the cumulative probabilities is exact up to one draw at each end."""
    distribution = as_type(random_categorical(np.random.default_rng(2), counts, ()), np.float32)
    draws = 10_000
    noise = np.repeat(((np.arange(draws) + 0.5) / draws).astype(np.float32)[:, None], len(counts), axis=1)
    action = np.asarray(jax.jit(jax.vmap(sample, (None, 0)))(distribution, noise))
    assert action.dtype == np.int32 and action.shape == (draws, len(counts))
    for i, logits in enumerate(distribution.logits):
        found = np.bincount(action[:, i], minlength=counts[i])
        assert np.all(np.abs(found - draws * special.softmax(logits)) <= 2)


def test_frequencies_of_samples_pass_a_chi_square_test():
    """Counts pairs, to check that coordinates are independent, too."""
    counts, draws = (4, 3), 100_000
    distribution = as_type(random_categorical(np.random.default_rng(3), counts, ()), np.float32)
    noise = distribution.draw_noise(jax.random.PRNGKey(4), (draws, distribution.noise_size))
    assert noise.min() >= 0 and noise.max() < 1
    action = np.asarray(jax.jit(jax.vmap(sample, (None, 0)))(distribution, noise))
    found = np.bincount(action[:, 0] * 3 + action[:, 1], minlength=12)
    p, q = (special.softmax(np.float64(logits)) for logits in distribution.logits)
    assert stats.chisquare(found, draws * np.outer(p, q).ravel()).pvalue > 1e-3


@settings(deadline=None, max_examples=60)
@given(
    seeds,
    st.sampled_from([1, 2, 7, 1000]),
    st.sampled_from([0.0, 1.0, 30.0, 1e4, 1e30]),
    st.sampled_from([0.0, 1e-45, 1e-7, 0.5, 1 - 2**-23, float(ALMOST_1)]),
)
def test_samples_are_in_range_and_have_positive_probability(seed, count, scale, noise):
    rng = np.random.default_rng(seed)
    logits = (scale * rng.normal(size=count)).astype(np.float32)
    logits[1:][rng.random(count - 1) < 0.3] = -1e9
    distribution = Categorical((logits, logits[::-1].copy()))
    action = np.asarray(sample_compiled(distribution, np.full(2, noise, np.float32)))
    assert np.all((action >= 0) & (action < count))
    for each, chosen in zip(distribution.logits, action, strict=True):
        assert jax.nn.softmax(each)[chosen] > 0


def test_sample_for_noise_of_one_is_in_range():
    for logits in ([0.0, 1.0, -1e9], [3.0], [-1e9, 5.0]):
        action = sample_compiled(Categorical((np.float32(logits),)), np.float32([1.0]))
        assert 0 <= action[0] < len(logits)


def test_mode_is_the_most_likely_choice():
    distribution = Categorical((np.float32([[0, 3, 1], [9, 3, 1]]), np.float32([[1, 0], [-5, -4]])))
    mode = mode_compiled(distribution)
    np.testing.assert_array_equal(mode, [[1, 0], [0, 1]])
    assert mode.dtype == np.int32 and distribution.noise_size == 2 and distribution.summary() == {}


def test_distribution_protocol():
    rng = np.random.default_rng(5)
    assert isinstance(random_gaussian(rng), Distribution) and isinstance(random_categorical(rng), Distribution)
    assert not isinstance((1, 2), Distribution) and not isinstance(np.zeros(3), Distribution)
