"""Models fitted to samples of known systems, in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrpo.algorithms.gps.linear_fit import LinearFit, centres, linear_fit
from jaxtrpo.algorithms.gps.quadratic_regression import (
    add,
    concave,
    features,
    fit,
    no_sums,
    num_features,
    sums_of,
    validated_fit,
)

Z, OUT, ROWS = 4, 3, 200
RIDGES = (1e-9, 1e-4, 1e-1, 1.0)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def known_quadratic(seed: int = 0):
    rng = np.random.default_rng(seed)
    constant, slope, root = rng.normal(size=OUT), rng.normal(size=(OUT, Z)), rng.normal(size=(OUT, Z, Z))
    curvature = root + np.swapaxes(root, 1, 2)

    def evaluate(z):
        return constant + z @ slope.T + 0.5 * np.einsum("oij,ri,rj->ro", curvature, z, z)

    return (constant, slope, curvature), evaluate


def test_quadratic_regression_recovers_known_quadratic():
    (constant, slope, curvature), evaluate = known_quadratic()
    z = np.random.default_rng(1).normal(size=(ROWS, Z))
    weight = np.arange(ROWS) % 3 > 0
    y = np.where(weight[:, None], evaluate(z), 1e3)  # rows without weight are garbage
    sums = sums_of(jnp.asarray(z), jnp.asarray(y), jnp.asarray(weight, jnp.float64))
    found = fit(sums, Z, 1e-12)
    for value, wanted in zip(found, (constant, slope, curvature), strict=True):
        np.testing.assert_allclose(value, wanted, atol=1e-7)
    np.testing.assert_allclose(found(jnp.asarray(z)), evaluate(z), atol=1e-7)
    jacobian = jax.jacobian(lambda row: found(row[None])[0])(jnp.asarray(z[0]))
    np.testing.assert_allclose(found.slope_at(jnp.asarray(z[0])), jacobian, atol=1e-9)


def test_sums_of_parts_add_up():
    z, y = jnp.asarray(np.random.default_rng(0).normal(size=(2, 50, 3)))
    ones = jnp.ones(50)
    whole = sums_of(z, y, ones)
    parts = add(sums_of(z[:20], y[:20], ones[:20]), sums_of(z[20:], y[20:], ones[20:]))
    jax.tree.map(np.testing.assert_allclose, whole, parts)
    assert features(z).shape == (50, num_features(3)) == (50, 10)


def test_fit_without_rows_is_zero():
    for leaf in fit(no_sums(3, 2), 3, 0.1):
        np.testing.assert_array_equal(leaf, np.zeros_like(leaf))


def test_constant_input_has_zero_coefficient():
    """Otherwise its coefficient would be amplified rounding error and spoil all other curvatures."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(ROWS, 2))
    z[:, 1] = 1e-8 * rng.normal(size=ROWS)
    found = fit(sums_of(jnp.asarray(z), jnp.asarray(z[:, :1]) ** 2, jnp.ones(ROWS)), 2, 1e-9)
    np.testing.assert_allclose(found.curvature[0], [[2, 0], [0, 0]], atol=1e-6)


def test_penalty_is_chosen_on_held_out_rows():
    """An output without noise gets the smallest penalty, pure noise the largest."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(60, Z))
    y = np.stack([z[:, 0] * z[:, 1], rng.normal(size=60)], axis=1)
    z, y, halves = (
        jnp.asarray(z),
        jnp.asarray(y),
        [jnp.asarray(np.arange(60) % 2 == half, jnp.float64) for half in (0, 1)],
    )
    known = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), no_sums(Z, 2))

    def squared_error(model, half):
        return jnp.sum(halves[half][:, None] * (y - model(z)) ** 2, axis=0) / 30

    sums = tuple(sums_of(z, y, weight) for weight in halves)
    found = validated_fit(known, sums, squared_error, jnp.var(y, axis=0), Z, RIDGES)
    np.testing.assert_allclose(found.ridge, [RIDGES[0], RIDGES[-1]])
    assert found.unexplained[0] < 1e-6 and found.unexplained[1] > 0.5
    np.testing.assert_allclose(found.quadratic.curvature[0, 0, 1], 1.0, atol=1e-6)


def test_concave_part_is_nearest_in_frobenius_norm():
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(4, 4))
    matrix = matrix + matrix.T
    found = np.asarray(concave(jnp.asarray(matrix)))
    assert np.linalg.eigvalsh(found).max() < 1e-12 and np.linalg.eigvalsh(matrix).max() > 0.1
    for _ in range(50):
        root = rng.normal(size=(4, 4))
        assert np.linalg.norm(matrix - found) <= np.linalg.norm(matrix + root @ root.T) + 1e-12
    np.testing.assert_allclose(concave(jnp.asarray(found)), found, atol=1e-12)


def linear_system(seed: int, samples: int, noise: float):
    rng = np.random.default_rng(seed)
    steps = 5
    slope, constant = rng.normal(size=(steps, OUT, Z)), rng.normal(size=(steps, OUT))
    z = rng.normal(size=(steps, samples, Z))
    y = np.einsum("toz,tsz->tso", slope, z) + constant[:, None] + noise * rng.normal(size=(steps, samples, OUT))
    return slope, constant, jnp.asarray(z), jnp.asarray(y)


def no_prior(z, weight) -> LinearFit:
    steps = z.shape[0]
    zeros = jnp.zeros((steps, OUT))
    return LinearFit(
        centres(z, weight), zeros, jnp.zeros((steps, OUT, Z)), jnp.broadcast_to(jnp.eye(OUT), (steps, OUT, OUT))
    )


def test_linear_fit_recovers_known_linear_system():
    slope, constant, z, y = linear_system(0, 20_000, 0.1)
    weight = jnp.ones(z.shape[:2])
    found = linear_fit(z, y, weight, no_prior(z, weight), jnp.ones(Z), strength=1e-6, window=0)
    np.testing.assert_allclose(found.slope, slope, atol=5e-3)
    np.testing.assert_allclose(found.constant, constant + np.einsum("toz,tz->to", slope, found.centre), atol=5e-3)
    np.testing.assert_allclose(found.covariance, np.broadcast_to(0.01 * np.eye(OUT), found.covariance.shape), atol=5e-4)


@pytest.mark.parametrize("window", [0, 1, 7])  # the last is longer than the five steps
def test_posterior_is_ridge_regression_at_each_step(window):
    _, _, z, y = linear_system(1, 6, 0.5)
    weight = jnp.asarray(np.random.default_rng(0).random(z.shape[:2]) < 0.7, jnp.float64)
    scale, strength = np.array([1.0, 2.0, 0.5, 1.0]), 3.0
    found = linear_fit(z, y, weight, no_prior(z, weight), jnp.asarray(scale), strength=strength, window=window)
    missed = []
    for t in range(len(z)):
        rows, errors = [], []
        for near in range(max(t - window, 0), min(t + window + 1, len(z))):
            chosen = np.asarray(weight[near]) > 0
            rows.append(np.asarray(z[near])[chosen] - np.asarray(z[near])[chosen].mean(axis=0))
            errors.append(np.asarray(y[near])[chosen] - np.asarray(y[near])[chosen].mean(axis=0))
        d, e = np.concatenate(rows), np.concatenate(errors)
        wanted = e.T @ d @ np.linalg.inv(d.T @ d + strength * np.diag(scale**2))
        np.testing.assert_allclose(found.slope[t], wanted, rtol=1e-7, atol=1e-9)
        own = np.asarray(weight[t]) > 0
        mean, count = np.asarray(y[t])[own].mean(axis=0), own.sum()
        np.testing.assert_allclose(found.constant[t], mean * count / (count + 1), rtol=1e-7)
        d = np.asarray(z[t])[own] - np.asarray(z[t])[own].mean(axis=0)
        missed.append(np.asarray(y[t])[own] - mean - d @ wanted.T)
    for t in range(len(z)):
        left = np.concatenate(missed[max(t - window, 0) : t + window + 1])
        wanted = (left.T @ left + strength * np.eye(OUT)) / (len(left) + strength)
        np.testing.assert_allclose(found.covariance[t], wanted, rtol=1e-7, atol=1e-9)


def test_without_samples_prior_is_kept():
    _, _, z, y = linear_system(2, 3, 0.1)
    weight = jnp.zeros(z.shape[:2])
    prior = no_prior(z, weight)._replace(slope=jnp.ones((5, OUT, Z)), constant=jnp.ones((5, OUT)))
    found = linear_fit(z, y, weight, prior, jnp.ones(Z), strength=2.0, window=2)
    for name in ("slope", "constant", "covariance"):
        np.testing.assert_allclose(getattr(found, name), getattr(prior, name))
