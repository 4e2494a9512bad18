"""Fisher-vector products against dense Hessians of a KL divergence written out here."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from jaxtrpo.ops.fisher import fisher_vector_product
from jaxtrpo.ops.fisher_layers import NARROW
from jaxtrpo.policies.distributions import Gaussian, fisher_metric
from jaxtrpo.policies.networks import gaussian_policy

STATES = 7


def plain_kl(old_mean, old_log_std, new_mean, new_log_std):
    """Textbook KL divergence between diagonal normal distributions."""
    old_variance, new_variance = jnp.exp(2 * old_log_std), jnp.exp(2 * new_log_std)
    each = new_log_std - old_log_std + (old_variance + (old_mean - new_mean) ** 2) / (2 * new_variance) - 0.5
    return jnp.sum(each, axis=-1)


class Case:
    """A small policy in float64 and the dense matrices its Fisher products are compared with."""

    def __init__(self, form):
        self.policy = gaussian_policy(3, 2, hidden=(4, NARROW + 1))  # one layer narrower than NARROW, one wider
        self.linearized = getattr(self.policy, form)
        rng = np.random.default_rng(0)
        start = self.policy.init(jax.random.PRNGKey(0))
        self.params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) * 0.7), start)
        self.obs = jnp.asarray(rng.normal(size=(STATES, 3)))
        self.flat, self.unravel = ravel_pytree(self.params)
        self.hessian = jax.jit(jax.hessian(self._weighted_kl))
        self.even = jnp.full(STATES, 1 / STATES)

    def _weighted_kl(self, flat, share):
        old = self.policy.apply(self.params, self.obs)
        new = self.policy.apply(self.unravel(flat), self.obs)
        return jnp.sum(share * plain_kl(old.mean, old.log_std, new.mean, new.log_std))

    def product(self, share, **options):
        def metric(distribution, tangent):
            return jax.tree.map(lambda leaf: share[:, None] * leaf, fisher_metric(distribution, tangent))

        return fisher_vector_product(lambda p: self.linearized(p, self.obs), self.params, metric, **options)

    def dense(self, share, **options):
        @jax.jit
        def rows(share):
            product = self.product(share, **options)
            return jax.lax.map(lambda row: ravel_pytree(product(self.unravel(row)))[0], jnp.eye(self.flat.size))

        return np.asarray(rows(share))


@pytest.fixture(scope="module", params=["apply", "apply_for_products"])
def case(request):
    with jax.enable_x64(True):
        yield Case(request.param)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def test_product_matches_hessian_of_mean_kl(case):
    np.testing.assert_allclose(case.dense(case.even), case.hessian(case.flat, case.even), rtol=1e-9, atol=1e-11)


def test_states_count_according_to_their_weight(case):
    share = jnp.asarray([0.0, 0.5, 0.0, 0.2, 0.3, 0.0, 0.0])
    np.testing.assert_allclose(case.dense(share), case.hessian(case.flat, share), rtol=1e-9, atol=1e-11)


def test_matrix_is_symmetric_and_positive_semi_definite(case):
    matrix = case.dense(case.even)
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-10, atol=1e-13)
    assert np.linalg.eigvalsh(matrix).min() > -1e-12


def test_quadratic_form_is_not_negative_in_float32(case):
    """The Gauss-Newton form is positive semi-definite despite rounding; one with second derivatives would not be."""
    # Along the null space, a form that is wrong in the last digits can take either sign.
    null_space = np.linalg.svd(np.asarray(case.hessian(case.flat, case.even)))[2][-4:].astype(np.float32)
    with jax.enable_x64(False):
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), case.params)
        obs = jnp.asarray(case.obs, jnp.float32)
        product = jax.jit(fisher_vector_product(lambda p: case.linearized(p, obs), params, fisher_metric))
        _, unravel = ravel_pytree(params)
        for vector in null_space:
            image = ravel_pytree(product(unravel(jnp.asarray(vector))))[0]
            assert np.dot(vector, image) >= -1e-6 * np.linalg.norm(image)


def test_quadratic_form_is_twice_kl_of_short_step(case):
    rng = np.random.default_rng(1)
    step = 1e-4 * rng.normal(size=case.flat.size)
    moved = case.policy.apply(case.unravel(case.flat + step), case.obs)
    old = case.policy.apply(case.params, case.obs)
    kl = np.mean(plain_kl(old.mean, old.log_std, moved.mean, moved.log_std))
    np.testing.assert_allclose(0.5 * step @ case.dense(case.even) @ step, kl, rtol=1e-3)


def test_products_are_summed_over_devices(case):
    summed = case.dense(case.even, reduce=lambda tree: jax.tree.map(lambda leaf: 5 * leaf, tree))
    np.testing.assert_allclose(summed, 5 * case.dense(case.even), rtol=1e-12)


def test_compiled_product_matches_eager(case):
    vector = case.unravel(jnp.asarray(np.random.default_rng(2).normal(size=case.flat.size)))
    product = case.product(case.even)
    eager, compiled = ravel_pytree(product(vector))[0], ravel_pytree(jax.jit(product)(vector))[0]
    np.testing.assert_allclose(compiled, eager, rtol=1e-10, atol=1e-14)


def test_metric_is_hessian_of_kl_in_distribution_parameters():
    rng = np.random.default_rng(3)
    at = jnp.asarray(rng.normal(size=4))  # two means, two log standard deviations

    def kl(new):
        return plain_kl(at[:2], at[2:], new[:2], new[2:])

    hessian = np.asarray(jax.jit(jax.hessian(kl))(at))
    for vector in np.eye(4):
        image = fisher_metric(Gaussian(at[:2], at[2:]), Gaussian(jnp.asarray(vector[:2]), jnp.asarray(vector[2:])))
        np.testing.assert_allclose(np.concatenate(image), hessian @ vector, rtol=1e-10, atol=1e-12)


def test_metric_is_mean_outer_product_of_scores():
    """Computes E[score score^T] by Gauss-Hermite quadrature, with the scores of a normal distribution written out."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    weights = weights / weights.sum()
    mean, log_std = 0.4, -0.7
    action = mean + np.exp(log_std) * nodes
    scores = np.stack([(action - mean) * np.exp(-2 * log_std), ((action - mean) * np.exp(-log_std)) ** 2 - 1])
    fisher = (weights * scores) @ scores.T
    at = Gaussian(jnp.array([mean]), jnp.array([log_std]))
    for vector in np.eye(2):
        image = fisher_metric(at, Gaussian(jnp.asarray(vector[:1]), jnp.asarray(vector[1:])))
        np.testing.assert_allclose(np.concatenate(image), fisher @ vector, rtol=1e-10, atol=1e-12)
