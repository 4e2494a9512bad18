"""Normalised advantage functions: the loss against float64 NumPy, and learning on probes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probe import BOTH, DISCOUNT, TRUNCATED, ProbeEnvironment
from support import TWO_NUMBERS, actors, deal_batch, first, learner_of, random_batch, spread
from test_algorithms import ActingProbe, tiny

from jaxtrpo.algorithms.naf import ValueAndCurvature, naf, quadratic_advantage
from jaxtrpo.critics.none import none
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.policies.networks import gaussian_policy
from jaxtrpo.rollout.replay import inserted
from jaxtrpo.rollout.types import Batch
from jaxtrpo.training.train import prepare, train

BOUND_BELOW = ActionSpace(np.array([-np.inf, 0.0]), np.full(2, np.inf))  # same units as the policy
POLICY, CRITIC = gaussian_policy(3, 2, hidden=(8,)), none().make(3)


@settings(deadline=None)
@given(seed=st.integers(0, 100), size=st.integers(1, 4))
def test_advantage_matches_quadratic_form(seed, size):
    rng = np.random.default_rng(seed)
    lower = np.tril(rng.normal(size=(5, size, size)))
    mean, action = rng.normal(size=(2, 5, size))
    found = quadratic_advantage(*map(jnp.float32, (lower, mean, action)))
    for i in range(5):
        away = action[i] - mean[i]
        np.testing.assert_allclose(found[i], -0.5 * away @ lower[i] @ lower[i].T @ away, rtol=1e-4, atol=1e-6)


def test_curvature_is_lower_triangular_and_positive_definite():
    network, obs = ValueAndCurvature((8,), 3), jax.random.normal(jax.random.PRNGKey(1), (20, 4))
    value, lower = network.apply(network.init(jax.random.PRNGKey(0), obs), 5 * obs)
    assert value.shape == (20,) and np.all(np.triu(lower, 1) == 0) and np.ptp(np.tril(lower, -1)) > 0
    assert np.all(np.diagonal(lower, axis1=1, axis2=2) > 0)
    assert np.all(np.linalg.eigvalsh(lower @ np.swapaxes(lower, 1, 2)) > 0)


def test_curvature_does_not_vanish():
    """A mean with zero curvature would get no gradient and, on most seeds of Pendulum, never move again."""
    network, obs = ValueAndCurvature((8,), 2), jnp.float32(np.random.default_rng(0).normal(size=(50, 4)))
    params = jax.tree.map(lambda leaf: 100 * leaf, network.init(jax.random.PRNGKey(0), obs))
    _, lower = network.apply(params, obs)
    diagonal = np.diagonal(lower, axis1=1, axis2=2)
    np.testing.assert_allclose([diagonal.min(), diagonal.max()], np.exp(np.float32([-2, 5])), rtol=1e-5)


@functools.cache
def learning(count: int, bounded: bool, words_of: tuple = ()):
    settings = {"replay": 10_000, "minibatch_size": 4096, "replay_ratio": 1e-6}
    algorithm = naf(hidden=(8,), **{**settings, **dict(words_of)})
    learner = learner_of(algorithm, POLICY, CRITIC, segment_steps=12, actions=TWO_NUMBERS if bounded else BOUND_BELOW)

    def learn(state: QLearnerState, batch: Batch, *others):
        return learner.learn(inserted(learner.replay, state, batch), batch, *others)

    return learner, actors(count).map(learn)


def learned(batches: list[Batch], count: int = 1, *, bounded: bool = True, **settings):
    learner, learn = learning(count, bounded, tuple(settings.items()))
    key = jax.random.PRNGKey(1)
    state = spread(learner.init(key, key), count)
    before = first(state)
    for batch in batches:
        rate = {"learning_rate": np.full(count, 1e-3, np.float32)}
        state, info = learn(state, deal_batch(batch, count), rate, spread(jax.random.PRNGKey(2), count))
    for leaf in jax.tree.leaves(state):
        np.testing.assert_array_equal(leaf[0], leaf[-1])
    return before, first(state), first(info)


def plain_bellman_error(state, batch: Batch, bounds: tuple) -> float:
    """Computes the root mean square Bellman error over all steps, in units of reward, in float64."""
    steps, double = batch.steps, functools.partial(np.asarray, dtype=np.float64)
    valid = double(~steps.invalid).ravel()
    rewards = double(steps.reward).ravel()[valid > 0]
    scale = 10 * np.sqrt(np.mean(rewards**2))
    obs = double(steps.obs).reshape(-1, 3)
    mean, std = obs[valid > 0].mean(axis=0), obs[valid > 0].std(axis=0)
    network = ValueAndCurvature((8,), 2)

    def apply(raw):
        return network.apply(state.critic, jnp.clip((raw.reshape(-1, 3) - mean) / std, -10, 10))

    later, _ = apply(double(steps.final_obs))
    value, lower = apply(obs)
    best = np.clip(POLICY.apply(state.policy, jnp.clip((obs - mean) / std, -10, 10)).mean, *bounds)
    away = np.clip(double(steps.action).reshape(-1, 2), *bounds) - best
    advantage = -0.5 * np.sum(np.einsum("rij,ri->rj", double(lower), away) ** 2, axis=-1)
    worth = double(steps.reward).ravel() / scale + 0.99 * ~steps.terminated.ravel() * double(later)
    error = double(value) + advantage - worth
    return scale * np.sqrt(np.sum(valid * error**2) / np.sum(valid))


@pytest.mark.parametrize(("bounded", "bounds"), [(True, (-1, 1)), (False, ([-np.inf, 0], np.inf))])
def test_bellman_error_matches_float64(bounded, bounds):
    """Fails if terminated steps bootstrap, broken ones count, or truncated ones bootstrap from after the reset."""
    batch = random_batch(3, end=0.3, broken=0.2)
    batch.steps.action[:] *= 3
    before, _, info = learned([batch], bounded=bounded)
    assert info["gradient_steps"] == 1
    # One minibatch of 4,096 draws from 48 rows: about 85 draws of each row.
    np.testing.assert_allclose(info["bellman_error"], plain_bellman_error(before, batch, bounds), rtol=0.05)


def constant(params: dict, numbers: list[float]) -> dict:
    """Returns the parameters of a network whose output is constant."""

    def change(tree: dict) -> dict:
        last = max((name for name in tree if name == "last" or name.startswith("Dense")), default=None)
        changed = {name: change(leaf) if isinstance(leaf, dict) else leaf for name, leaf in tree.items()}
        if last is not None:
            kernel, bias = np.asarray(tree[last]["kernel"]), np.float32(numbers)
            assert kernel.shape[1:] == bias.shape
            changed[last] = {"kernel": np.zeros_like(kernel), "bias": bias}
        return changed

    return change(params)


def constant_steps(end: str = "continues", reward: float = 2.0, action=(1.0, 0.5)) -> Batch:
    """Returns a batch of steps that are equal except for their observations."""
    batch = random_batch(0, end=0, broken=0)
    steps = batch.steps
    return batch._replace(
        steps=steps._replace(
            reward=np.full_like(steps.reward, reward),
            action=np.broadcast_to(np.float32(action), steps.action.shape),
            terminated=np.full_like(steps.terminated, end == "terminated"),
            truncated=np.full_like(steps.truncated, end == "truncated"),
        )
    )


SQUARE = [np.log(2.0), 9.0, 1.0, np.log(0.5)]  # L = [[2, 0], [1, 0.5]]; the entry above the diagonal is ignored


def learned_from_constants(batch: Batch, *, mean=(0.25, -0.5), value=3.0, later=5.0, rate=1e-3, **settings):
    """Returns state and info after one update of networks with constant outputs."""
    learner, learn = learning(1, True, tuple({"target_rate": 0.25, **settings}.items()))
    key = jax.random.PRNGKey(1)
    before = learner.init(key, key)
    before = before._replace(
        policy=constant(before.policy, list(mean)),
        critic=constant(before.critic, [value, *SQUARE]),
        target=constant(before.target, [later, *SQUARE]),
    )
    rates = {"learning_rate": np.full(1, rate, np.float32)}
    return map(first, learn(spread(before, 1), deal_batch(batch, 1), rates, spread(key, 1)))


@pytest.mark.parametrize("minibatch_size", [1, 4096])
@pytest.mark.parametrize("end", ["continues", "truncated", "terminated"])
def test_target_of_constant_steps_matches_hand_calculation(end, minibatch_size):
    """All steps are equal, with reward 2, and all networks have constant outputs.

    V = 3, L = [[2, 0], [1, 0.5]] and the mean is (0.25, -0.5), so the action (1, 0.5) has the value
    Q = 3 - (2.5^2 + 0.5^2) / 2 = -0.25; the target network predicts V' = 5. Values are in units of 10 x 2 = 20.
    """
    after, info = learned_from_constants(constant_steps(end), minibatch_size=minibatch_size)
    worth = 2 / 20 + (0.0 if end == "terminated" else 0.99 * 5.0)
    np.testing.assert_allclose(info["bellman_error"], 20 * abs(-0.25 - worth), rtol=1e-4)
    # Adam's first step has the length of the learning rate: V moves up to its target, and the mean to the action.
    np.testing.assert_allclose(after.critic["params"]["last"]["bias"][0], 3 + 1e-3, rtol=1e-6)
    bias = after.policy["params"]["MLP_0"]["last"]["bias"]
    np.testing.assert_allclose(bias, [0.25 + 1e-3, -0.5 + 1e-3], rtol=1e-5)
    np.testing.assert_allclose(after.target["params"]["last"]["bias"][0], 5 + 0.25 * (3 + 1e-3 - 5), rtol=1e-6)


def test_bellman_error_is_mean_over_gradient_steps():
    """With a learning rate of 0, all gradient steps have the same error."""
    _, info = learned_from_constants(constant_steps(), rate=0.0, target_rate=0.0, replay_ratio=0.5, minibatch_size=16)
    assert info["gradient_steps"] == 24
    np.testing.assert_allclose(info["bellman_error"], 20 * (0.25 + 2 / 20 + 0.99 * 5), rtol=1e-4)


def test_means_out_of_bounds_are_penalised_and_clipped():
    """V = r + 0.99 V' holds and the action is at the bounds, so only the penalty on means has a gradient."""
    worth = 2 / 20 + 0.99 * 5
    after, info = learned_from_constants(constant_steps(action=(7.0, -1.0)), mean=(1.5, -3.0), value=worth)
    np.testing.assert_allclose(info["bellman_error"], 0.0, atol=1e-4)
    bias = after.policy["params"]["MLP_0"]["last"]["bias"]
    np.testing.assert_allclose(bias, [1.5 - 1e-3, -3.0 + 1e-3], rtol=1e-5)


def test_batch_without_valid_steps_changes_nothing():
    batch = random_batch(0)
    batch = batch._replace(steps=batch.steps._replace(invalid=np.ones_like(batch.steps.invalid)))
    before, after, info = learned([batch])
    for old, new in zip(jax.tree.leaves(before[:2]), jax.tree.leaves(after[:2]), strict=True):
        np.testing.assert_array_equal(old, new)
    assert info["bellman_error"] == 0


@pytest.mark.parametrize(("ratio", "num_segments", "steps"), [(0.5, 1, 6), (0.5, 3, 18), (1.4, 2, 34), (1e-3, 4, 1)])
def test_gradient_steps_are_proportional_to_new_steps(ratio, num_segments, steps):
    _, after, info = learned([random_batch(0, num_segments=num_segments)], replay_ratio=ratio, minibatch_size=16)
    assert info["gradient_steps"] == steps == optax.tree.get(after.optimizer, "count")


def test_larger_minibatches_of_many_environments_mean_fewer_gradient_steps():
    """Four steps of each of twelve environments are three times the usual minibatch."""
    settings = {"replay_ratio": 0.5, "minibatch_size": 16, "minibatch_per_env": 4.0}
    _, _, info = learned([random_batch(0, num_segments=3)], **settings)
    assert info["gradient_steps"] == 6


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_target_network_moves_by_target_rate(rate):
    before, after, _ = learned([random_batch(0)], target_rate=rate)
    moved = jax.tree.map(
        lambda old, new, target: (old + rate * (new - old), target), before.target, after.critic, after.target
    )
    for wanted, target in jax.tree.leaves(moved, is_leaf=lambda leaf: isinstance(leaf, tuple)):
        np.testing.assert_allclose(target, wanted, atol=1e-7)
    assert any(
        np.any(old != new)
        for old, new in zip(jax.tree.leaves(before.critic), jax.tree.leaves(after.critic), strict=True)
    )


def test_non_finite_update_is_discarded():
    batch = random_batch(0)
    batch.steps.reward[0, 0, 0] = np.nan
    batch.steps.invalid[0, 0, 0] = False
    before, after, _ = learned([batch])
    for old, new in zip(jax.tree.leaves(before[:4]), jax.tree.leaves(after[:4]), strict=True):
        np.testing.assert_array_equal(old, new)


def test_padding_does_not_matter():
    plain, padded = (learned([random_batch(0, num_segments=2, padding=value)]) for value in (0.0, 9.0))
    jax.tree.map(np.testing.assert_array_equal, plain[1], padded[1])


# ---- learning


class Probe(ProbeEnvironment):
    """A single kind of probe."""

    def __init__(self, kind: int):
        self.kind = kind

    def reset(self, key, num_envs):
        state = super().reset(key, num_envs)
        return state._replace(physics=state.physics._replace(kind=jnp.full(num_envs, self.kind, jnp.int32)))


def trained(kind: int, **settings):
    words = "naf(hidden=(16,), replay_ratio=1.0, replay=4000, minibatch_size=64, learning_rate=0.005)"
    settings = {"num_envs": 16, "steps_per_update": 64, "discount": DISCOUNT, "total_steps": 6000, **settings}
    return train(Probe(kind), algorithm=words, progress=False, **settings)


def test_naf_finds_best_action_for_each_observation():
    policy = trained(BOTH).policy
    np.testing.assert_allclose(policy(np.float32([[1, 0], [-1, 0]]))[:, 0], [0.5, -0.5], atol=0.05)


def test_value_ignores_time_limit():
    """The reward is the sign. Fails if truncated steps do not bootstrap or do so from the state after the reset."""
    result = trained(TRUNCATED)
    state = first(result.state.learner)
    network, moments = ValueAndCurvature((16,), 1), state.obs_moments
    scale = 10 * np.sqrt(state.rewards.mean**2 + state.rewards.variance)
    for sign in (-1.0, 1.0):
        obs = (np.float32([sign, 0]) - moments.mean) / np.where(moments.variance > 1e-12, np.sqrt(moments.variance), 1)
        value, _ = network.apply(state.critic, jnp.asarray(obs))
        np.testing.assert_allclose(scale * value, sign / (1 - DISCOUNT), atol=0.4)  # 1 or 0 if wrong


# ---- refused settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"critic": "mlp"}, "critic: naf has its own value function; use critic=none"),
        ({"surrogate": lambda new, samples: new}, "surrogate: naf does not use a surrogate; "),
    ],
)  # fmt: skip
def test_unsupported_parts_are_refused_with_one_line(settings, message):
    with pytest.raises(ValueError) as error:
        prepare(ActingProbe(), **{**tiny("naf"), **settings})
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_discrete_actions_are_refused():
    with pytest.raises(
        ValueError, match="^algorithm: naf needs continuous actions, but these are discrete; use trpo or ppo$"
    ):
        prepare("CartPole-v1", algorithm="naf")
