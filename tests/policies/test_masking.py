"""Masked policies choose, compare and measure as a policy over the legal choices alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from masked_env import MOVES, DoorsEnvironment
from support import TWO_NUMBERS

import jaxtrpo
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.ops.moments import no_moments
from jaxtrpo.policies.distributions import Categorical, Gaussian
from jaxtrpo.policies.masking import Masked, legal, masked_policy
from jaxtrpo.policies.networks import mlp
from jaxtrpo.policies.recurrence import Sequences
from jaxtrpo.policies.recurrent import gru
from jaxtrpo.policies.trained import TrainedPolicy

CHOICES = ActionSpace(np.zeros(2), np.array([2.0, 3.0]), (3, 4))
MASK = np.array([[1, 0, 1, 0, 1, 1, 1], [0, 1, 0, 1, 1, 0, 0]], bool)
pytestmark = pytest.mark.shared_programs
SETTINGS = {"total_steps": 3_000, "num_envs": 8, "progress": False, "actors": 1}


def logits(seed: int) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(rng.normal(size=(2, count)), jnp.float32) for count in (3, 4))


def on_legal(seed: int, row: int) -> Categorical:
    """Returns a distribution over the legal choices of one row only."""
    parts = np.split(MASK[row], [3])
    return Categorical(tuple(jnp.asarray(each[row][part]) for each, part in zip(logits(seed), parts, strict=True)))


@pytest.mark.parametrize("row", [0, 1])
def test_masked_distribution_matches_one_of_the_legal_choices(row):
    old, new = (legal(Categorical(logits(seed)), jnp.asarray(MASK)) for seed in (0, 1))
    small_old, small_new = on_legal(0, row), on_legal(1, row)
    np.testing.assert_allclose(old.entropy()[row], small_old.entropy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(old.kl_divergence(new)[row], small_old.kl_divergence(small_new), rtol=1e-4, atol=1e-6)
    parts = np.split(MASK[row], [3])
    action = jnp.array([[np.flatnonzero(part)[-1] for part in parts]] * 2)
    in_small = jnp.array([part.sum() - 1 for part in parts])
    np.testing.assert_allclose(old.log_prob(action)[row], small_old.log_prob(in_small), rtol=1e-5, atol=1e-6)
    tangent = Categorical(
        tuple(jnp.where(part, each, 0) for each, part in zip(logits(2), np.split(MASK, [3], 1), strict=True))
    )
    found = old.fisher_metric(tangent)
    small = small_old.fisher_metric(on_legal(2, row))
    for whole, part, wanted in zip(found.logits, parts, small.logits, strict=True):
        np.testing.assert_allclose(whole[row][part], wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(whole[row][~part], 0.0)


def test_illegal_choices_are_never_drawn_and_get_no_gradient():
    policy = masked_policy(mlp().make(4, CHOICES))
    params = jax.tree.map(lambda leaf: 3 * jnp.ones_like(leaf), policy.init(jax.random.PRNGKey(0)))
    obs = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4)), jnp.float32)
    noise = Categorical.draw_noise(jax.random.PRNGKey(1), (500, 2, 2))
    drawn = np.asarray(jax.vmap(policy.apply(params, Masked(obs, jnp.asarray(MASK))).sample)(noise))
    for row in range(2):
        for coordinate, part in enumerate(np.split(MASK[row], [3])):
            assert set(drawn[:, row, coordinate]) <= set(np.flatnonzero(part))
    assert set(drawn[:, 0, 0]) == {0, 2}

    def log_prob(params):
        return jnp.sum(policy.apply(params, Masked(obs, jnp.asarray(MASK))).log_prob(jnp.asarray(drawn[0])))

    gradient = jax.grad(log_prob)(params)["params"]["MLP_0"]["last"]["bias"]
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[~MASK.any(axis=0)], 0.0)


def test_outputs_for_products_with_the_fisher_matrix_are_masked():
    plain = mlp().make(4, CHOICES)
    policy, params = masked_policy(plain), plain.init(jax.random.PRNGKey(0))
    inputs = Masked(jnp.ones((2, 4)), jnp.asarray(MASK))
    assert plain.apply_for_products is not None and policy.apply_for_products is not None
    for ours, wanted, raw in zip(
        policy.apply_for_products(params, inputs).logits,
        policy.apply(params, inputs).logits,
        plain.apply_for_products(params, inputs.obs).logits,
        strict=True,
    ):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5)
        np.testing.assert_array_equal(np.where(ours > -1e6, ours, raw), raw)
    without = plain._replace(apply_for_products=None)
    assert masked_policy(without).apply_for_products is None


def test_mask_of_a_policy_with_memory_is_that_of_each_step():
    plain = gru(hidden=4).make(3, CHOICES)
    policy, params = masked_policy(plain), plain.init(jax.random.PRNGKey(0))
    obs = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2, 3)), jnp.float32)
    mask = jnp.asarray(np.stack([MASK, ~MASK, MASK, MASK, ~MASK]))
    inputs = Sequences(Masked(obs, mask), jnp.zeros((5, 2), bool), plain.recurrence.start(2))
    found = policy.apply(params, inputs)
    wanted = legal(plain.apply(params, inputs._replace(obs=obs)), mask)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)
    carry = inputs.carry
    for t in range(5):
        distribution, carry = policy.recurrence.step(params, carry, Masked(obs[t], mask[t]), inputs.first[t])
        jax.tree.map(lambda a, b, t=t: np.testing.assert_allclose(a, b[t], rtol=1e-5), distribution, wanted)


def test_mask_needs_discrete_actions():
    with pytest.raises(ValueError, match="Categorical"):
        legal(Gaussian(jnp.zeros((1, 2)), jnp.zeros((1, 2))), jnp.ones((1, 2), bool))

    class Continuous(DoorsEnvironment):
        action_counts = ()
        action_low, action_high = TWO_NUMBERS.low[:1], TWO_NUMBERS.high[:1]

    with pytest.raises(ValueError, match="action masks need discrete actions"):
        jaxtrpo.train(Continuous(), **SETTINGS)


@pytest.mark.parametrize("algorithm", ["trpo", "ppo", "a2c"])
@pytest.mark.parametrize("policy", ["mlp(hidden=(16,))", "gru(hidden=8, encoder=(), bptt_steps=5)"])
def test_training_takes_legal_moves_only(algorithm, policy):
    """A single illegal move would make the return of an episode an odd number below its legal ones."""
    result = jaxtrpo.train(DoorsEnvironment(), seed=100, algorithm=algorithm, policy=policy, **SETTINGS)
    returns = result.metrics["return_100"]
    assert np.nanmin(returns) > 1.0  # half of five legal moves are rewarded by chance; illegal ones cost 1


def test_mask_saves_steps_and_evaluation_uses_it(tmp_path):
    result = jaxtrpo.train(DoorsEnvironment(), seed=100, out=tmp_path / "run", **{**SETTINGS, "total_steps": 10_000})
    without = jaxtrpo.train(DoorsEnvironment(masks_actions=False), seed=100, **{**SETTINGS, "total_steps": 10_000})
    assert result.metrics["return_100"][-1] > without.metrics["return_100"][-1] + 1
    loaded = jaxtrpo.load_policy(tmp_path / "run")
    assert loaded.masked
    for policy in (result.policy, loaded):
        assert jaxtrpo.evaluate(policy, DoorsEnvironment(), episodes=8).mean > 3
    with pytest.raises(ValueError, match="action masks"):
        jaxtrpo.evaluate(result.policy, DoorsEnvironment(masks_actions=False), episodes=2)


def test_trained_policy_takes_the_mask():
    result = jaxtrpo.train(DoorsEnvironment(), seed=100, **{**SETTINGS, "total_steps": 200})
    policy, obs = result.policy, np.zeros(MOVES, np.float32)
    for move in (2, 7):
        mask = np.arange(MOVES) == move
        assert policy(obs, action_mask=mask) == move
        assert policy(np.zeros((3, MOVES), np.float32), action_mask=np.stack([mask] * 3)).tolist() == [[move]] * 3
    for wrong in ({}, {"action_mask": np.ones(4, bool)}, {"action_mask": np.ones((2, MOVES), bool)}):
        with pytest.raises(ValueError, match="action_mask"):
            policy(obs, **wrong)
    plain = jaxtrpo.train(DoorsEnvironment(masks_actions=False), seed=100, **{**SETTINGS, "total_steps": 200}).policy
    with pytest.raises(ValueError, match="without masks"):
        plain(obs, action_mask=np.ones(MOVES, bool))


def test_masks_of_coordinates_are_joined():
    """Also traced ones, and those that simulators give as a matrix."""
    space = ActionSpace(np.zeros(2), np.full(2, 2.0), (3, 3))
    network = mlp(hidden=(4,))
    policy = TrainedPolicy(
        env_name="Some-v1", observation_size=2, actions=space, maker=network, masked=True, observations=None,
        params=masked_policy(network.make(2, space)).init(jax.random.PRNGKey(0)),
        moments=no_moments((2,)), max_episode_steps=None, env_options=None, observation_space=None,
    )  # fmt: skip
    obs, masks = np.zeros(2, np.float32), (np.arange(3) == 2, np.arange(3) == 1)
    for mask in (masks, np.stack(masks), np.concatenate(masks), tuple(np.concatenate(masks).tolist())):
        np.testing.assert_array_equal(policy(obs, action_mask=mask), [2, 1])
    found, _ = jax.jit(lambda masks: policy.step(None, jnp.asarray(obs), action_mask=masks))(masks)
    np.testing.assert_array_equal(found, [2, 1])


def test_algorithm_without_masks_says_so():
    with pytest.raises(ValueError, match="trpo_replay cannot train with action masks"):
        jaxtrpo.train(DoorsEnvironment(), algorithm="trpo_replay", **{**SETTINGS, "num_envs": 16})
