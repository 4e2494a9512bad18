"""Squashed Gaussians against numerical integration in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm
from support import TWO_NUMBERS

from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.policies.squashed import SquashedGaussian, squashed

INNER = np.linspace(-30, 30, 2_000_001)  # values of u, over which integrals are sums
CASES = [(0.0, 0.0), (0.7, -1.5), (-2.0, 0.4), (4.0, -0.3)]  # means and log standard deviations of u


def log_density(mean: float, log_std: float, inner: np.ndarray) -> np.ndarray:
    """Computes log p(a) at a = tanh(u), from the slope of tanh, 1 / cosh(u)^2."""
    normal = -0.5 * ((inner - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
    return normal + 2 * np.logaddexp(inner, -inner) - 2 * np.log(2)


def integral(mean: float, log_std: float, of: np.ndarray) -> float:
    normal = np.exp(-0.5 * ((INNER - mean) / np.exp(log_std)) ** 2 - log_std) / np.sqrt(2 * np.pi)
    return float(np.sum(normal * of) * (INNER[1] - INNER[0]))


def distribution(*cases: tuple[float, float]) -> SquashedGaussian:
    mean, log_std = (jnp.float32([case[i] for case in cases]) for i in (0, 1))
    return SquashedGaussian(mean, log_std)


def test_density_of_independent_coordinates_is_that_of_the_transformed_normal():
    noise = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    pair = distribution(CASES[1], CASES[2])
    action, log_prob = pair.sample_with_log_prob(jnp.asarray(noise))
    inner = np.float64([0.7, -2.0]) + np.exp([-1.5, 0.4]) * noise
    np.testing.assert_allclose(action, np.tanh(inner), rtol=1e-5, atol=1e-6)
    wanted = sum(log_density(*CASES[1 + i], inner[:, i]) for i in range(2))
    np.testing.assert_allclose(log_prob, wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(pair.sample(jnp.asarray(noise)), action)
    inside = np.all(np.abs(inner) < 4, axis=1)
    assert inside.sum() > 30
    np.testing.assert_allclose(pair.log_prob(action)[inside], wanted[inside], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("case", CASES)
def test_entropy_is_the_integral(case):
    wanted = -integral(*case, log_density(*case, INNER))
    np.testing.assert_allclose(distribution(case).entropy(), wanted, rtol=1e-3, atol=2e-3)


def test_entropy_of_a_wide_distribution_is_nearly_the_integral():
    """The nodes are far apart where the slope of tanh has its bend."""
    wanted = -integral(0.0, 2.0, log_density(0.0, 2.0, INNER))
    np.testing.assert_allclose(distribution((0.0, 2.0)).entropy(), wanted, rtol=0.015)


def test_entropy_of_many_states_is_that_of_each():
    many = SquashedGaussian(*jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 3, 2)), jnp.float32))
    found = many.entropy()
    assert found.shape == (4, 3)
    for at in np.ndindex(4, 3):
        one = SquashedGaussian(many.mean[at], many.log_std[at])
        np.testing.assert_allclose(found[at], one.entropy(), rtol=1e-4, atol=1e-5)


def test_density_near_the_bounds():
    action = np.float32(np.tanh([5.0, 6.0, -6.5]))
    wanted = log_density(0.0, 0.0, np.arctanh(np.float64(action)))
    found = distribution((0.0, 0.0))._replace(mean=jnp.zeros((3, 1))).log_prob(jnp.asarray(action)[:, None])
    np.testing.assert_allclose(found, wanted, rtol=1e-3)


@pytest.mark.parametrize("case", [(6.0, 0.0), (-8.0, 0.0), (9.0, -0.5), (12.0, -2.3)])
def test_score_has_mean_zero_however_near_the_bounds(case):
    """So that an error of the critic does not push the mean in one direction."""
    noise = jnp.asarray(np.random.default_rng(0).normal(size=(200_000, 1)), jnp.float32)
    many = SquashedGaussian(*(jnp.full(noise.shape, number) for number in case))
    action = many.sample(noise)
    score = jax.grad(lambda pair: jnp.sum(pair.log_prob(action)))(many)
    assert np.all(np.isfinite(score.mean)) and np.all(np.isfinite(score.log_std))
    for found in (np.exp(case[1]) * np.asarray(score.mean, np.float64), np.asarray(score.log_std, np.float64)):
        assert abs(found.mean()) < 4 * found.std() / np.sqrt(noise.size) + 0.02  # of rounding near the bounds


def test_actions_at_a_bound_have_the_probability_of_being_there():
    bound = float(np.arctanh(1 - 2.0**-20))
    cases = [(6.0, 0.0), (8.0, 0.3), (5.0, 0.5), (-7.0, -1.0)]
    side = np.sign([mean for mean, _ in cases])
    numbers = jnp.float32(cases)
    found = SquashedGaussian(numbers[:, :1], numbers[:, 1:]).log_prob(jnp.asarray(side, jnp.float32)[:, None])
    wanted = [norm.logsf((bound - abs(mean)) / np.exp(log_std)) for mean, log_std in cases]
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def test_network_matches_plain_layers():
    policy, rng = squashed(hidden=(5, 4), initial_log_std=-1.5).make(3, TWO_NUMBERS), np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: np.float32(0.6 * rng.normal(size=leaf.shape)), policy.init(jax.random.PRNGKey(0))
    )
    obs = rng.normal(size=(7, 2, 3)).astype(np.float32)
    layers, x = params["params"], obs.astype(np.float64)
    for name in ("Dense_0", "Dense_1"):
        x = np.maximum(x @ layers[name]["kernel"] + layers[name]["bias"], 0)
    x = x @ layers["last"]["kernel"] + layers["last"]["bias"]
    found = policy.apply(params, jnp.asarray(obs))
    np.testing.assert_allclose(found.mean, x[..., :2], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.log_std, -1.5 + 5 * np.tanh(x[..., 2:] / 5), rtol=1e-4, atol=1e-5)


def test_list_is_taken_as_sizes():
    assert squashed(hidden=[8]) is squashed(hidden=(8,))


def test_entropy_of_coordinates_is_added():
    both = distribution(*CASES[:2]).entropy()
    np.testing.assert_allclose(both, sum(distribution(case).entropy() for case in CASES[:2]), rtol=1e-5)


def test_divergence_is_that_of_the_densities_of_actions():
    old, new = CASES[0], CASES[1]
    wanted = integral(*old, log_density(*old, INNER) - log_density(*new, INNER))
    np.testing.assert_allclose(distribution(old).kl_divergence(distribution(new)), wanted, rtol=1e-4)


def test_metric_is_the_hessian_of_the_divergence():
    old = distribution(*CASES[:2])

    def divergence(flat):
        return old.kl_divergence(SquashedGaussian(*jnp.split(flat, 2)))

    hessian = jax.hessian(divergence)(jnp.concatenate(old))
    tangent = jnp.float32([0.3, -0.2, 0.5, 0.1])
    product = old.fisher_metric(SquashedGaussian(*jnp.split(tangent, 2)))
    np.testing.assert_allclose(jnp.concatenate(product), hessian @ tangent, rtol=1e-4)


@pytest.mark.parametrize("mean", [-50.0, 50.0])
def test_far_out_everything_is_finite(mean):
    there = distribution((mean, 0.0))
    action, log_prob = there.sample_with_log_prob(jnp.zeros(1))
    assert np.isfinite(log_prob) and abs(action[0]) == 1
    assert np.isfinite(there.entropy()) and np.isfinite(there.log_prob(action))
    gradient = jax.grad(lambda mean: distribution_at(mean).sample_with_log_prob(jnp.zeros(1))[1])(mean)
    np.testing.assert_allclose(gradient, 2 * np.sign(mean), rtol=1e-5)  # of 2 log cosh u


def distribution_at(mean) -> SquashedGaussian:
    return SquashedGaussian(jnp.reshape(mean, 1), jnp.zeros(1))


def test_policy_is_nearly_uniform_at_first_and_its_mode_is_within_the_bounds():
    policy = squashed(hidden=(32,)).make(3, TWO_NUMBERS)
    params = policy.init(jax.random.PRNGKey(0))
    found = policy.apply(params, 3 * jax.random.normal(jax.random.PRNGKey(1), (400, 3)))
    assert isinstance(found, SquashedGaussian) and policy.noise_size == found.noise_size == 2
    assert np.max(np.abs(found.mode())) < 0.2
    np.testing.assert_allclose(found.mode(), np.tanh(found.mean), rtol=1e-5)
    action = found.sample(policy.draw_noise(jax.random.PRNGKey(2), (400, 2)))
    below = np.mean(np.asarray(action)[..., None] < np.linspace(-0.8, 0.8, 9), axis=(0, 1))
    np.testing.assert_allclose(below, np.linspace(0.1, 0.9, 9), atol=0.1)
    np.testing.assert_allclose(found.summary()["policy_std"], 1.0, atol=0.05)


def test_standard_deviation_depends_on_the_observation():
    policy = squashed(hidden=(8,), initial_log_std=-1).make(3, TWO_NUMBERS)
    params = jax.tree.map(lambda leaf: 30 * leaf, policy.init(jax.random.PRNGKey(0)))
    found = policy.apply(params, jax.random.normal(jax.random.PRNGKey(1), (9, 3)))
    assert np.ptp(found.log_std, axis=0).min() > 0.1
    np.testing.assert_allclose(found.summary()["policy_std"], np.mean(np.exp(found.log_std)), rtol=1e-5)


@pytest.mark.parametrize(
    ("space", "kind", "instead"),
    [
        (ActionSpace(np.array([-1.0, -np.inf]), np.ones(2)), "without bounds", "trpo"),
        (ActionSpace(np.zeros(1), np.ones(1), (2,)), "discrete", "dqn"),
    ],
)
def test_actions_without_bounds_are_refused(space, kind, instead):
    with pytest.raises(ValueError) as error:
        squashed().make(3, space)
    sentence = f"policy=squashed needs continuous actions between bounds, but these are {kind}; use mlp (and {instead} "
    assert str(error.value) == f"{sentence}in place of sac)"
