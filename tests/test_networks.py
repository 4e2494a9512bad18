"""First weights against what orthogonal matrices are, in float64 NumPy."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

from jaxtrpo.critics.mlp import mlp_critic
from jaxtrpo.policies.networks import LAST, gaussian_policy


def layers(params) -> dict[str, np.ndarray]:
    params = params["params"]
    params = params.get("MLP_0", params)
    return {name: np.float64(layer["kernel"]) for name, layer in params.items() if "kernel" in layer}


@pytest.mark.parametrize("hidden", [(64, 64), (7,), (3, 40, 5)])
@pytest.mark.parametrize("observations", [1, 17, 348])
def test_first_matrices_are_orthogonal_and_scaled(hidden, observations):
    """Narrow and wide, alone and padded to the size of others."""
    for make, last_scale in ((functools.partial(gaussian_policy, action_size=6), 0.01), (mlp_critic, 1.0)):
        params = make(observations, hidden=hidden).init(jax.random.PRNGKey(0))
        found = layers(params if make is not mlp_critic else params.params)
        outputs = 6 if last_scale == 0.01 else 1
        sizes = [observations, *hidden, outputs]
        assert sorted(kernel.shape for kernel in found.values()) == sorted(zip(sizes, sizes[1:], strict=False))
        for name, kernel in found.items():
            tall = kernel if kernel.shape[0] >= kernel.shape[1] else kernel.T
            scale = last_scale if name == LAST else np.sqrt(2)
            np.testing.assert_allclose(tall.T @ tall / scale**2, np.eye(tall.shape[1]), atol=1e-5)


def test_first_matrices_are_spread_evenly():
    """No direction is preferred: the entries of a random orthogonal n x n matrix have mean 0 and variance 1 / n."""
    policy = gaussian_policy(4, 2, hidden=(4,))
    draws = jax.vmap(policy.init)(jax.random.split(jax.random.PRNGKey(1), 4000))
    kernel = np.float64(draws["params"]["MLP_0"]["Dense_0"]["kernel"]) / np.sqrt(2)
    np.testing.assert_allclose(kernel.mean(axis=0), np.zeros((4, 4)), atol=0.05)
    np.testing.assert_allclose(kernel.var(axis=0), np.full((4, 4), 0.25), atol=0.02)


def test_biases_are_zero_and_log_std_is_as_given():
    params = gaussian_policy(3, 2, hidden=(5,), initial_log_std=-0.7).init(jax.random.PRNGKey(0))["params"]
    np.testing.assert_array_equal(params["log_std"], np.float32([-0.7, -0.7]))
    for layer in params["MLP_0"].values():
        assert not np.any(layer["bias"])
