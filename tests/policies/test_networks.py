"""Initial weights are orthogonal, checked in float64 NumPy."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrpo.critics.mlp import mlp_critic
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.envs.observation_space import Leaf, ObservationSpace
from jaxtrpo.policies.cnn import cnn
from jaxtrpo.policies.heads import LOG_STD_REACH
from jaxtrpo.policies.networks import LAST, categorical_policy, gaussian_policy, mlp
from jaxtrpo.policies.recurrent import gru, lstm


def layers(params) -> dict[str, np.ndarray]:
    params = params["params"]
    params = params.get("MLP_0", params)
    return {name: np.float64(layer["kernel"]) for name, layer in params.items() if "kernel" in layer}


@pytest.mark.parametrize(
    ("observations", "hidden"), [(1, (7,)), (17, (64, 64)), (17, (3, 40, 5)), (348, (64, 64)), (348, (3, 40, 5))]
)
def test_initial_matrices_are_orthogonal_and_scaled(hidden, observations):
    """Narrow and wide matrices, with and without padding to the size of others."""
    for make, last_scale in ((functools.partial(gaussian_policy, action_size=6), 0.01), (mlp_critic, 0.0)):
        params = jax.jit(make(observations, hidden=hidden).init)(jax.random.PRNGKey(0))
        found = layers(params if make is not mlp_critic else params.params)
        outputs = 6 if last_scale == 0.01 else 1
        sizes = [observations, *hidden, outputs]
        assert sorted(kernel.shape for kernel in found.values()) == sorted(zip(sizes, sizes[1:], strict=False))
        for name, kernel in found.items():
            tall = kernel if kernel.shape[0] >= kernel.shape[1] else kernel.T
            scale = last_scale if name == LAST else np.sqrt(2)
            expected = scale**2 * np.eye(tall.shape[1])
            np.testing.assert_allclose(tall.T @ tall, expected, atol=1e-5 * (scale or 1) ** 2)


def test_initial_matrices_are_uniformly_distributed():
    """The entries of a random orthogonal n x n matrix have mean 0 and variance 1 / n."""
    policy = gaussian_policy(4, 2, hidden=(4,))
    draws = jax.jit(jax.vmap(policy.init))(jax.random.split(jax.random.PRNGKey(1), 4000))
    kernel = np.float64(draws["params"]["MLP_0"]["Dense_0"]["kernel"]) / np.sqrt(2)
    np.testing.assert_allclose(kernel.mean(axis=0), np.zeros((4, 4)), atol=0.05)
    np.testing.assert_allclose(kernel.var(axis=0), np.full((4, 4), 0.25), atol=0.02)


def test_initial_biases_are_zero_and_log_std_is_as_given():
    params = gaussian_policy(3, 2, hidden=(5,), initial_log_std=-0.7).init(jax.random.PRNGKey(0))["params"]
    np.testing.assert_array_equal(params["log_std"], np.float32([-0.7, -0.7]))
    for layer in params["MLP_0"].values():
        assert not np.any(layer["bias"])


@pytest.mark.parametrize("make", [mlp, cnn, gru, lstm])
@pytest.mark.parametrize(
    ("size", "given", "expected"),
    [
        (7, None, -0.5),
        (8, None, -1.0),
        (11, None, -1.0),
        (12, None, -0.5),
        (17, None, -0.5),
        (8, -0.5, -0.5),
        (8, 0, 0.0),
    ],
)
def test_actions_of_many_coordinates_have_less_noise_at_first(make, size, given, expected):
    bounds = np.ones(size, np.float32)
    observed = ObservationSpace((Leaf("image", (8, 8, 1), "uint8"),)) if make is cnn else 3
    policy = make(initial_log_std=given).make(observed, ActionSpace(-bounds, bounds))
    np.testing.assert_array_equal(policy.init(jax.random.PRNGKey(0))["params"]["log_std"], np.full(size, expected))


@pytest.mark.parametrize(("given", "expected"), [(None, -0.5), (-1.0, -1.0)])
def test_state_dependent_noise_is_wide_at_first_unless_something_else_is_given(given, expected):
    policy = mlp(initial_log_std=given, state_dependent_std=True).make(3, ActionSpace(-np.ones(8), np.ones(8)))
    found = policy.apply(policy.init(jax.random.PRNGKey(0)), jnp.zeros(3))
    np.testing.assert_allclose(found.log_std, np.full(8, expected), atol=1e-6)


def test_initial_categorical_policy_is_nearly_uniform():
    policy = categorical_policy(5, (3, 2), hidden=(7,))
    params = policy.init(jax.random.PRNGKey(0))
    found = layers(params)
    assert {name: kernel.shape for name, kernel in found.items()} == {"Dense_0": (5, 7), LAST: (7, 5)}
    np.testing.assert_allclose(found[LAST].T @ found[LAST] / 0.01**2, np.eye(5), atol=1e-5)
    distribution = policy.apply(params, jnp.asarray(np.random.default_rng(0).normal(size=(4, 6, 5)), jnp.float32))
    assert [logits.shape for logits in distribution.logits] == [(4, 6, 3), (4, 6, 2)]
    assert policy.noise_size == distribution.noise_size == 2
    for logits in distribution.logits:
        np.testing.assert_allclose(jax.nn.softmax(logits), np.full(logits.shape, 1 / logits.shape[-1]), atol=0.02)


def test_parameter_names_of_gaussian_policy_match_policy_files():
    params = gaussian_policy(3, 2, hidden=(5, 4)).init(jax.random.PRNGKey(0))
    assert jax.tree.map(np.shape, params) == {
        "params": {
            "MLP_0": {
                "Dense_0": {"kernel": (3, 5), "bias": (5,)},
                "Dense_1": {"kernel": (5, 4), "bias": (4,)},
                LAST: {"kernel": (4, 2), "bias": (2,)},
            },
            "log_std": (2,),
        }
    }


@pytest.mark.parametrize("initial", [-10.0, -0.5, 2.0])
def test_state_dependent_std_starts_at_initial_std_and_stays_within_reach(initial):
    policy = gaussian_policy(3, 2, hidden=(8,), initial_log_std=initial, state_dependent_std=True)
    params = policy.init(jax.random.PRNGKey(0))
    obs = jnp.asarray(np.random.default_rng(1).normal(size=(50, 3)), jnp.float32)
    assert policy.noise_size == 2
    np.testing.assert_allclose(policy.apply(params, obs).log_std, np.full((50, 2), initial), atol=0.05)
    large = jax.tree.map(lambda leaf: 1e4 * leaf, params)
    change = np.asarray(policy.apply(large, obs).log_std) - initial
    assert np.all(np.abs(change) <= LOG_STD_REACH + 1e-5)
    assert change.min() < -1 and change.max() > 1 and np.ptp(change, axis=0).min() > 1


@pytest.mark.parametrize(
    "policy",
    [
        gaussian_policy(3, 2, hidden=(8, 17)),
        gaussian_policy(3, 2, hidden=(8, 17), state_dependent_std=True),
        categorical_policy(3, (4, 2), hidden=(8, 17)),
    ],
    ids=["gaussian", "state_dependent_std", "categorical"],
)
def test_apply_for_products_matches_apply(policy):
    params = policy.init(jax.random.PRNGKey(0))
    obs = np.random.default_rng(2).normal(size=(6, 3)).astype(np.float32)
    plain, for_products = (jax.jit(apply)(params, obs) for apply in (policy.apply, policy.apply_for_products))
    assert type(plain) is type(for_products)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), plain, for_products)
