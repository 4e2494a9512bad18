"""Value heads: the last output of a policy's network, independent of kind, memory and masks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain_recurrent import network_of, plain_unroll
from support import TWO_NUMBERS

from jaxtrpo.config.specs import parse
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.policies.masking import Masked, masked_policy
from jaxtrpo.policies.recurrence import Sequences
from jaxtrpo.policies.value_head import scaled_values

CHOICES = ActionSpace(np.zeros(2), np.array([1.0, 2.0]), (2, 3))
KINDS = {
    "mlp": "mlp(hidden=(5,), shared=True{})",
    "gru": "gru(hidden=4, shared=True{})",
    "lstm": "lstm(hidden=4, shared=True{})",
}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_head = pytest.mark.parametrize(
    ("actions", "more", "outputs"),
    [(TWO_NUMBERS, "", 2), (TWO_NUMBERS, ", state_dependent_std=True", 4), (CHOICES, "", 5)],
    ids=["gaussian", "state-dependent", "categorical"],
)  # fmt: skip
rng = np.random.default_rng(0)
OBS, FIRST = rng.normal(size=(6, 2, 3)).astype(np.float32), rng.random((6, 2)) < 0.3


def random_params(policy):
    draw = np.random.default_rng(1)
    shapes = jax.eval_shape(policy.init, jax.random.PRNGKey(0))
    return jax.tree.map(lambda leaf: jnp.asarray(0.5 * draw.normal(size=leaf.shape), jnp.float32), shapes)


def inputs_of(policy):
    if policy.recurrence is None:
        return jnp.asarray(OBS)
    carry = tuple(jnp.full((2, 4), 0.1 + part) for part in range(len(policy.recurrence.start(2))))
    return Sequences(jnp.asarray(OBS), jnp.asarray(FIRST), carry)


def plain_outputs(kind: str, params: dict, inputs) -> np.ndarray:
    layers = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])
    if kind != "mlp":
        return plain_unroll(network_of(params), kind, tuple(map(np.asarray, inputs.carry)), OBS, FIRST)[0]
    layers = layers["MLP_0"]
    x = np.tanh(OBS @ layers["Dense_0"]["kernel"] + layers["Dense_0"]["bias"])
    return x @ layers["last"]["kernel"] + layers["last"]["bias"]


@every_kind
@every_head
def test_value_is_the_last_output_and_the_distribution_has_the_others(kind, actions, more, outputs):
    policy = parse("policy", KINDS[kind].format(more)).make(3, actions)
    params, inputs = random_params(policy), inputs_of(policy)
    expected = plain_outputs(kind, params, inputs)
    assert expected.shape[-1] == outputs + 1
    distribution, value = policy.value_head.joint(params, inputs)
    np.testing.assert_allclose(value, expected[..., -1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(policy.value_head.value(params, inputs), expected[..., -1], rtol=1e-4, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, policy.apply(params, inputs), distribution)
    if actions.counts:
        np.testing.assert_allclose(jnp.concatenate(distribution.logits, -1), expected[..., :-1], rtol=1e-4, atol=1e-5)
    else:
        np.testing.assert_allclose(distribution.mean, expected[..., :2], rtol=1e-4, atol=1e-5)
        assert distribution.log_std.shape == distribution.mean.shape


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_memory_of_values_is_that_of_the_policy(kind):
    policy = parse("policy", KINDS[kind].format("")).make(3, TWO_NUMBERS)
    params, inputs = random_params(policy), inputs_of(policy)
    (actions, carries), (values, same) = (
        recurrence.unroll(params, inputs) for recurrence in (policy.recurrence, policy.value_head.recurrence)
    )
    jax.tree.map(np.testing.assert_array_equal, carries, same)
    jax.tree.map(np.testing.assert_array_equal, (actions, values), policy.value_head.joint(params, inputs))
    value, carry = policy.value_head.recurrence.step(params, inputs.carry, inputs.obs[0], inputs.first[0])
    np.testing.assert_allclose(value, values[0], rtol=1e-5)
    jax.tree.map(lambda one, all_: np.testing.assert_allclose(one, all_[0], rtol=1e-5), carry, carries)


@every_kind
def test_values_are_zero_at_first_and_actions_near_uniform(kind):
    policy = parse("policy", KINDS[kind].format("")).make(3, CHOICES)
    params = policy.init(jax.random.PRNGKey(3))
    distribution, value = policy.value_head.joint(params, inputs_of(policy))
    np.testing.assert_array_equal(value, 0.0)
    assert 0 < max(np.ptp(logits) for logits in distribution.logits) < 0.2


@every_kind
def test_scaling_changes_values_only(kind):
    policy = parse("policy", KINDS[kind].format("")).make(3, TWO_NUMBERS)
    params, inputs = random_params(policy), inputs_of(policy)
    changed = scaled_values(params, 2.5, -1.5)
    (before, value), (after, scaled) = (policy.value_head.joint(each, inputs) for each in (params, changed))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), after, before)
    np.testing.assert_allclose(scaled, 2.5 * value - 1.5, rtol=1e-4, atol=1e-5)


@every_kind
def test_masks_count_for_actions_only(kind):
    plain = parse("policy", KINDS[kind].format("")).make(3, CHOICES)
    policy, params, inputs = masked_policy(plain), random_params(plain), inputs_of(plain)
    mask = jnp.broadcast_to(jnp.array([True, False, False, True, True]), (6, 2, 5))
    masked = Masked(jnp.asarray(OBS), mask)
    distribution, value = policy.value_head.joint(params, masked if kind == "mlp" else inputs._replace(obs=masked))
    np.testing.assert_array_equal(value, plain.value_head.value(params, inputs))
    np.testing.assert_array_equal(policy.value_head.value(params, inputs), value)
    for found, free, part in zip(distribution.logits, plain.apply(params, inputs).logits, ([0], [1, 2]), strict=True):
        np.testing.assert_array_equal(found[..., part], free[..., part])
        others = [i for i in range(found.shape[-1]) if i not in part]
        assert np.all(jax.nn.softmax(found)[..., others] == 0)
