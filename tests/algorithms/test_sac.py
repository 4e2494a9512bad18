"""Soft actor-critic: its losses against separate ones and hand calculation, and learning on probes.

What every algorithm does is tested in test_algorithms.py.
"""

from __future__ import annotations

import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probe import BOTH, DISCOUNT, ProbeEnvironment
from support import TWO_NUMBERS
from test_algorithms import ActingProbe, tiny

import jaxtrpo
from jaxtrpo.algorithms.sac import ActionValue, Critics, soft_loss, values_of
from jaxtrpo.policies.squashed import squashed
from jaxtrpo.rollout.replay import Transitions
from jaxtrpo.training.train import prepare

ROWS, UNIT, WANTED, LOSS_DISCOUNT = 40, jnp.float32(4.0), -1.5, 0.9
POLICY, NETWORK = squashed(hidden=(8,)).make(3, TWO_NUMBERS), ActionValue((8,))


def problem(seed: int = 0):
    """Returns parameters, those of the target network, rows, and noise."""
    rng = np.random.default_rng(seed)
    keys = jax.random.split(jax.random.PRNGKey(seed), 4)

    def networks(key):
        return jax.vmap(lambda one: NETWORK.init(one, jnp.zeros(3), jnp.zeros(2)))(jax.random.split(key, 2))

    of_policy = jax.tree.map(lambda leaf: 7 * leaf, POLICY.init(keys[0]))
    params = of_policy, Critics(networks(keys[1]), jnp.float32(-0.7))
    rows = Transitions(
        obs=np.float32(rng.normal(size=(ROWS, 3))),
        action=np.float32(1.5 * rng.normal(size=(ROWS, 2))),
        reward=np.float32(3 * rng.normal(size=ROWS)),
        terminated=np.float32(rng.random(ROWS) < 0.3),
        final_obs=np.float32(rng.normal(size=(ROWS, 3))),
        elapsed=np.zeros(ROWS, np.float32),
        weight=np.float32(rng.random(ROWS) < 0.7),
    )
    rows = jax.tree.map(jnp.asarray, rows)
    assert 0 < np.sum(rows.weight) < ROWS and 0 < np.sum(rows.terminated) < ROWS
    return params, networks(keys[2]), rows, jax.random.normal(keys[3], (ROWS, 4))


def draw(of_policy, obs, noise):
    """Draws actions; computes their log densities from those of the normal distribution and the slope of tanh."""
    found = POLICY.apply(of_policy, obs)
    inner = found.mean + jnp.exp(found.log_std) * noise
    normal = -0.5 * noise**2 - found.log_std - 0.5 * jnp.log(2 * jnp.pi)
    return jnp.tanh(inner), jnp.sum(normal + 2 * (jnp.logaddexp(inner, -inner) - jnp.log(2)), axis=-1)


def each_value(params, obs, action):
    """Applies one network after the other."""
    both = [jax.tree.map(lambda leaf, i=i: leaf[i], params) for i in range(2)]
    return [NETWORK.apply(one, obs, action) for one in both]


def mean(values, rows):
    valid = np.flatnonzero(np.asarray(rows.weight))
    return jnp.mean(values[valid])


def wanted_values(params, target, rows, noise):
    of_policy, critics = params
    action, log_prob = draw(of_policy, rows.final_obs, noise[:, :2])
    ahead = jnp.minimum(*each_value(target, rows.final_obs, action)) - jnp.exp(critics.log_temperature) * log_prob
    return rows.reward / UNIT + LOSS_DISCOUNT * jnp.where(rows.terminated > 0, 0.0, ahead)


def found(params, target, rows, noise):
    loss = soft_loss(POLICY, NETWORK, TWO_NUMBERS, discount=LOSS_DISCOUNT, target_entropy=WANTED)

    def means(params):
        losses, errors = loss(params, target, rows, UNIT, noise)
        return mean(losses, rows), mean(errors, rows)

    return jax.value_and_grad(means, has_aux=True)(params)


def close(ours, wanted):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-5), ours, wanted)


@pytest.mark.parametrize("seed", range(3))
def test_values_follow_the_squared_error_of_both_networks(seed):
    params, target, rows, noise = problem(seed)
    worth = wanted_values(params, target, rows, noise)

    def errors(values):
        return [mean((q - worth) ** 2, rows) for q in each_value(values, rows.obs, jnp.clip(rows.action, -1, 1))]

    (_, error), gradient = found(params, target, rows, noise)
    close(gradient[1].values, jax.grad(lambda values: 0.5 * sum(errors(values)))(params[1].values))
    np.testing.assert_allclose(error, np.mean(errors(params[1].values)), rtol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_policy_follows_the_smaller_value_and_its_entropy(seed):
    params, target, rows, noise = problem(seed)

    def objective(of_policy):
        action, log_prob = draw(of_policy, rows.obs, noise[:, 2:])
        smaller = jnp.minimum(*each_value(params[1].values, rows.obs, action))
        return mean(jnp.exp(params[1].log_temperature) * log_prob - smaller, rows)

    _, gradient = found(params, target, rows, noise)
    close(gradient[0], jax.grad(objective)(params[0]))
    assert max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(gradient[0])) > 1e-2


def test_temperature_rises_where_entropy_is_too_small():
    """The gradient of the logarithm is entropy minus what is wanted; descent goes against it."""
    params, target, rows, noise = problem()
    _, gradient = found(params, target, rows, noise)
    _, log_prob = draw(params[0], rows.obs, noise[:, 2:])
    np.testing.assert_allclose(gradient[1].log_temperature, mean(-log_prob, rows) - WANTED, rtol=1e-4)


@pytest.mark.parametrize("on_cpu", [True, False])
def test_each_network_has_values_of_its_own(on_cpu, monkeypatch):
    monkeypatch.setattr(importlib.import_module("jaxtrpo.algorithms.sac"), "on_cpu", lambda: on_cpu)
    params, _, rows, _ = problem()
    both = values_of(NETWORK, params[1].values, rows.obs, rows.action)
    close(both, jnp.stack(each_value(params[1].values, rows.obs, rows.action)))
    assert np.max(np.abs(both[0] - both[1])) > 1e-2


class Probe(ProbeEnvironment):
    """The best action is half the sign that is observed."""

    def reset(self, key, num_envs):
        state = super().reset(key, num_envs)
        return state._replace(physics=state.physics._replace(kind=jnp.full(num_envs, BOTH, jnp.int32)))


def trained(**settings):
    words = "sac(hidden=(16,), replay=4000, minibatch_size=64, learning_rate=0.005, target_entropy={target_entropy})"
    words = words.format(**{"target_entropy": -2.0, **settings})
    return jaxtrpo.train(
        Probe(), algorithm=words, policy="squashed(hidden=(16,))", num_envs=16, steps_per_update=64, seed=100,
        discount=DISCOUNT, total_steps=6_000, progress=False,
    )  # fmt: skip


@pytest.mark.parametrize("target_entropy", [-2.0, -0.5])
def test_finds_the_best_action_and_keeps_the_entropy_that_is_asked_for(target_entropy):
    result = trained(target_entropy=target_entropy)
    np.testing.assert_allclose(result.policy(np.float32([[1, 0], [-1, 0]]))[:, 0], [0.5, -0.5], atol=0.1)
    np.testing.assert_allclose(np.mean(result.metrics["entropy"][-20:]), target_entropy, atol=0.3)
    assert result.metrics["temperature"][-1] < result.metrics["temperature"][0]


@pytest.mark.parametrize(("given", "wanted"), [("sac", -1.0), ("sac(target_entropy=0.25)", 0.25)])
def test_temperature_maintains_minus_one_nat_per_coordinate_by_default(monkeypatch, given, wanted):
    found = []

    def noted(*parts, target_entropy, **settings):
        found.append(target_entropy)
        return soft_loss(*parts, target_entropy=target_entropy, **settings)

    monkeypatch.setattr(sys.modules[soft_loss.__module__], "soft_loss", noted)
    prepare("Pendulum-v1", algorithm=given, actors=1, seed=3)  # one coordinate
    assert found == [wanted]


def test_defaults():
    run = prepare("Pendulum-v1", algorithm="sac", actors=1)
    assert (run.config.policy, run.config.critic) == ("squashed", "none")
    assert run.update.learner.replay is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"critic": "mlp"}, "critic: sac has its own value functions; use critic=none"),
        ({"policy": "mlp"}, "policy: sac needs squashed actions; use policy=squashed"),
        ({"policy": "gru"}, "policy: sac cannot train networks with memory; trpo, npg, "),
        ({"surrogate": lambda new, samples: new}, "surrogate: sac does not use a surrogate; "),
    ],
)
def test_unsupported_parts_are_refused_with_one_line(settings, message):
    with pytest.raises(ValueError) as error:
        prepare(ActingProbe(), **{**tiny("sac"), **settings})
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_discrete_actions_are_refused():
    with pytest.raises(ValueError, match=r"^policy=squashed needs continuous actions between bounds, but these are"):
        prepare("CartPole-v1", algorithm="sac")
