"""Imitation of linear-Gaussian controllers by a network: the divergence and its minimum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from jaxtrpo.algorithms.gps.imitation import Examples, divergence, imitate
from jaxtrpo.policies.distributions import Gaussian
from jaxtrpo.policies.networks import gaussian_policy

TIME, CONDITIONS, SAMPLES, X, U = 6, 2, 8, 2, 2
GAIN = np.float32([[0.5, -1.0], [0.2, 0.3]])
POLICY = gaussian_policy(X, U, hidden=())  # can represent the controllers exactly
OPTIMIZER = optax.scale_by_adam()
PRECISION = np.float32([[4.0, 1.0], [1.0, 9.0]])


def examples(*, wrong: bool = False) -> Examples:
    """Returns examples of equal controllers; if `wrong`, half of the samples are garbage without weight."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(TIME, CONDITIONS, SAMPLES, X)).astype(np.float32)
    mean, weight = obs @ GAIN.T, np.ones((TIME, CONDITIONS, SAMPLES), np.float32)
    if wrong:
        weight[..., ::2] = 0
        mean[..., ::2, :] = 100
    precision = np.broadcast_to(PRECISION, (TIME, CONDITIONS, U, U))
    return Examples(*map(jnp.asarray, (obs, mean, precision, weight)))


@jax.jit
def learned(some: Examples):
    params = POLICY.init(jax.random.PRNGKey(0))
    memory, key = OPTIMIZER.init(ravel_pytree(params)[0]), jax.random.PRNGKey(1)
    rate = jnp.float32(0.02)
    return imitate(POLICY, params, memory, some, key, OPTIMIZER, rate, steps=1500, minibatch_size=32)


def test_divergence_matches_sampled_kl():
    """Estimates KL(policy || controller) in float64; the reverse KL has a different value."""
    with jax.enable_x64(True):
        rng, count = np.random.default_rng(0), 400_000
        mean, log_std, target = rng.normal(size=U), np.array([-0.3, 0.4]), rng.normal(size=U)
        precision = np.array([[2.0, 0.7], [0.7, 1.5]])
        acting = Gaussian(jnp.asarray(mean[None, None, None]), jnp.asarray(log_std[None, None, None]))
        case = Examples(jnp.zeros((1, 1, 1, 3)), *(jnp.asarray(leaf[None, None]) for leaf in (target[None], precision)),
                        jnp.ones((1, 1, 1)))  # fmt: skip
        found = float(divergence(acting, case)[0, 0, 0])
    u = mean + np.exp(log_std) * rng.normal(size=(count, U))
    away, std = u - target, np.exp(log_std)
    own = -0.5 * np.sum(((u - mean) / std) ** 2, axis=1) - np.sum(log_std)
    others = 0.5 * np.linalg.slogdet(precision)[1] - 0.5 * np.einsum("ni,ij,nj->n", away, precision, away)
    difference = own - others
    assert abs(found - difference.mean()) < 5 * difference.std() / np.sqrt(count)
    assert found > 0.1


@pytest.mark.parametrize("wrong", [False, True], ids=["all count", "half count"])
def test_network_learns_controllers_it_can_represent(wrong):
    """Samples without weight are ignored. The best uncorrelated noise has variance 1 / diagonal of the precision."""
    params, _, left = learned(examples(wrong=wrong))
    obs = np.float32([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    acting = POLICY.apply(params, jnp.asarray(obs))
    np.testing.assert_allclose(acting.mean, obs @ GAIN.T, atol=5e-3)
    np.testing.assert_allclose(np.exp(-2 * acting.log_std[0]), np.diagonal(PRECISION), rtol=2e-2)
    nearest = 0.5 * (np.sum(np.log(np.diagonal(PRECISION))) - np.linalg.slogdet(PRECISION)[1])
    np.testing.assert_allclose(left, nearest, atol=2e-3)


def test_conflicting_controllers_are_averaged_by_precision():
    """For two controllers with different means, the result is their mean weighted by precision."""
    some = examples()
    mean = jnp.stack([jnp.zeros_like(some.mean[:, 0]), jnp.ones_like(some.mean[:, 0])], axis=1)
    precision = jnp.stack([jnp.broadcast_to(part * jnp.eye(U), (TIME, U, U)) for part in (1.0, 3.0)], axis=1)
    params, *_ = learned(some._replace(mean=mean, precision=precision, obs=jnp.zeros_like(some.obs)))
    np.testing.assert_allclose(POLICY.apply(params, jnp.zeros(X)).mean, [0.75, 0.75], atol=5e-3)


def test_samples_count_alike_however_few_are_left_at_their_time():
    """Minibatches hold one time step each; at the last of them, one sample in eight is left."""
    some = examples()
    weight = some.weight.at[1:].set(0).at[-1, :, 0].set(1)
    mean = jnp.zeros_like(some.mean).at[-1].set(1)
    some = some._replace(mean=mean, weight=weight, obs=jnp.zeros_like(some.obs))
    params, _, left = learned(some)
    found = POLICY.apply(params, jnp.zeros(X)).mean
    np.testing.assert_allclose(found, [1 / 9, 1 / 9], atol=0.02)
    acting = POLICY.apply(params, some.obs)
    np.testing.assert_allclose(left, jnp.sum(weight * divergence(acting, some)) / 18, rtol=1e-5)
