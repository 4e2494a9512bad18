"""Recurrent networks match flax's cells and plain loops, and forget where an episode begins."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from plain_recurrent import network_of, plain_unroll
from support import TWO_NUMBERS

from jaxtrpo.config.specs import parse
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.envs.observation_space import Leaf, ObservationSpace
from jaxtrpo.policies import recurrent
from jaxtrpo.policies.cnn import Encoder, Shape
from jaxtrpo.policies.distributions import Categorical
from jaxtrpo.policies.recurrence import Sequences, from_rows, in_stretches, num_stretches, rows_of, to_rows
from jaxtrpo.policies.recurrent import CELLS, gru, lstm

TIME, ENVS, OBS = 7, 3, 4
CHOICES = ActionSpace(np.zeros(2), np.array([1.0, 2.0]), (2, 3))


def sequences(hidden: int, parts: int, seed: int = 0) -> Sequences:
    rng = np.random.default_rng(seed)
    carry = tuple(rng.normal(size=(ENVS, hidden)).astype(np.float32) for _ in range(parts))
    first = rng.random((TIME, ENVS)) < 0.3
    inputs = Sequences(rng.normal(size=(TIME, ENVS, OBS)).astype(np.float32), first, carry)
    return jax.tree.map(jnp.asarray, inputs)


def with_random_weights(params: dict, seed: int = 1) -> dict:
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(0.7 * rng.normal(size=leaf.shape), jnp.float32), params)


def flax_step(cell: str, matrix: np.ndarray, inputs: np.ndarray, carry: tuple) -> tuple:
    """Runs flax's cell, whose inputs are the contributions to the gates."""
    gates, size = CELLS[cell].gates, matrix.shape[0]
    blocks = [slice(i * size, (i + 1) * size) for i in range(gates)]
    select = [np.eye(gates * size)[:, block] for block in blocks]  # takes a gate's inputs from all of them
    if cell == "gru":
        names, module = "rzn", nn.GRUCell(size)
        params = {
            f"i{name}": {"kernel": kernel, "bias": np.zeros(size)} for name, kernel in zip(names, select, strict=True)
        }
        params |= {f"h{name}": {"kernel": matrix[:, block]} for name, block in zip(names, blocks, strict=True)}
        params["hn"]["bias"] = np.zeros(size)
        carry, _ = module.apply({"params": params}, carry[0], inputs)
        return (carry,)
    names, module = "ifgo", nn.LSTMCell(size)
    params = {f"i{name}": {"kernel": kernel} for name, kernel in zip(names, select, strict=True)}
    params |= {
        f"h{name}": {"kernel": matrix[:, block], "bias": np.full(size, float(name == "f"))}
        for name, block in zip(names, blocks, strict=True)
    }
    (memory, hidden), _ = module.apply({"params": params}, (carry[1], carry[0]), inputs)
    return hidden, memory


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_cell_matches_flax(cell):
    rng, size = np.random.default_rng(0), 5
    matrix = rng.normal(size=(size, CELLS[cell].gates * size)).astype(np.float32)
    inputs = rng.normal(size=(ENVS, CELLS[cell].gates * size)).astype(np.float32)
    carry = tuple(rng.normal(size=(ENVS, size)).astype(np.float32) for _ in range(CELLS[cell].parts))
    wanted = flax_step(cell, matrix, inputs, carry)
    found = CELLS[cell].step(*jax.tree.map(jnp.asarray, (carry, inputs, matrix)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), tuple(found), wanted)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("actions", [TWO_NUMBERS, CHOICES], ids=["numbers", "choices"])
def test_unroll_matches_plain_loop(cell, actions):
    policy = parse("policy", f"{cell}(hidden=6, encoder=(5, 4), bptt_steps=3)").make(OBS, actions)
    params = with_random_weights(policy.init(jax.random.PRNGKey(0)))
    inputs = sequences(6, CELLS[cell].parts)
    outputs, carries = plain_unroll(network_of(params), cell, inputs.carry, inputs.obs, inputs.first)
    distribution, found = policy.recurrence.unroll(params, inputs)
    if actions is CHOICES:
        assert isinstance(distribution, Categorical)
        np.testing.assert_allclose(np.concatenate(distribution.logits, axis=-1), outputs, rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_allclose(distribution.mean, outputs, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(distribution.log_std[2, 1], params["params"]["log_std"])
    for part, wanted in zip(found, zip(*carries, strict=True), strict=True):
        np.testing.assert_allclose(part, np.stack(wanted), rtol=1e-4, atol=1e-4)
    jax.tree.map(np.testing.assert_array_equal, policy.apply(params, inputs), distribution)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_images_pass_through_convolutions_first(cell):
    space = ObservationSpace((Leaf("image", (6, 7, 2), "uint8"), Leaf("vector", (3,))))
    policy = parse("policy", f"{cell}(hidden=6, encoder=(5, 4), channels=(3,))").make(space, CHOICES)
    params = with_random_weights(policy.init(jax.random.PRNGKey(0)))
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (TIME, ENVS, 6, 7, 2), np.uint8)
    obs = {"image": images, "vector": rng.normal(size=(TIME, ENVS, 3)).astype(np.float32)}
    obs = jax.tree.map(jnp.asarray, obs)
    inputs = sequences(6, CELLS[cell].parts)._replace(obs=obs)
    encoder = Encoder(Shape("impala", (3,), 5))
    features = [encoder.apply(params["images"], jax.tree.map(lambda leaf, t=t: leaf[t], obs)) for t in range(TIME)]
    outputs, carries = plain_unroll(network_of(params["rest"]), cell, inputs.carry, features, inputs.first)
    distribution, found = policy.recurrence.unroll(params, inputs)
    np.testing.assert_allclose(np.concatenate(distribution.logits, axis=-1), outputs, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[-1], np.stack([carry[-1] for carry in carries]), rtol=1e-4, atol=1e-4)
    assert np.asarray(features).std() > 0.1 and np.asarray(outputs).std() > 0.1


def test_features_of_images_are_as_many_as_those_of_a_network_without_memory():
    space = ObservationSpace((Leaf("image", (40, 40, 1), "uint8"),))
    for settings, units in (("", 256), ("kind='nature'", 512), ("encoder=(9, 4)", 9)):
        params = jax.eval_shape(parse("policy", f"gru({settings})").make(space, CHOICES).init, jax.random.PRNGKey(0))
        assert params["images"]["params"]["joined"]["bias"].shape == (units,)
    assert params["rest"]["params"]["network"]["Dense_0"]["kernel"].shape == (9, 4)


@pytest.mark.parametrize("maker", [gru, lstm])
def test_step_is_an_unroll_of_one_step(maker):
    policy = maker(hidden=6).make(OBS, TWO_NUMBERS)
    params = with_random_weights(policy.init(jax.random.PRNGKey(0)))
    inputs = sequences(6, len(policy.recurrence.start(1)))
    whole, carries = policy.recurrence.unroll(params, inputs)
    carry = inputs.carry
    for t in range(TIME):
        distribution, carry = policy.recurrence.step(params, carry, inputs.obs[t], inputs.first[t])
        np.testing.assert_allclose(distribution.mean, whole.mean[t], rtol=1e-5, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[-1], rtol=1e-5, atol=1e-5), carry, carries)


def test_nothing_is_remembered_from_the_episode_before():
    policy = gru(hidden=6).make(OBS, TWO_NUMBERS)
    params = with_random_weights(policy.init(jax.random.PRNGKey(0)))
    inputs = sequences(6, 1)._replace(first=jnp.zeros((TIME, ENVS), bool))
    begins = inputs.first.at[3, 1].set(True)

    def mean(first, past):
        obs = inputs.obs.at[:3].add(past)
        return np.asarray(policy.apply(params, Sequences(obs, first, inputs.carry)).mean)

    np.testing.assert_array_equal(mean(begins, 0.0)[3:, 1], mean(begins, 1.0)[3:, 1])
    assert np.all(mean(begins, 0.0)[3:, 0] != mean(begins, 1.0)[3:, 0])


def test_carry_starts_at_zero_for_every_environment():
    for maker, parts in ((gru, 1), (lstm, 2)):
        start = maker(hidden=6).make(OBS, TWO_NUMBERS).recurrence.start(5)
        assert [part.shape for part in start] == [(5, 6)] * parts and not any(part.any() for part in start)


def test_initial_matrices_are_orthogonal_and_actions_small():
    policy = gru(hidden=16, encoder=(8,)).make(OBS, TWO_NUMBERS)
    params = policy.init(jax.random.PRNGKey(0))
    layers = network_of(params)
    np.testing.assert_allclose(layers["recurrent"] @ layers["recurrent"].T, 3 * np.eye(16), atol=1e-4)
    np.testing.assert_allclose(layers["last"]["kernel"].T @ layers["last"]["kernel"], 1e-4 * np.eye(2), atol=1e-8)
    np.testing.assert_allclose(layers["Dense_0"]["kernel"] @ layers["Dense_0"]["kernel"].T, 2 * np.eye(4), atol=1e-4)


def test_state_dependent_std_stays_within_its_bound():
    policy = gru(hidden=6, initial_log_std=-1.0, state_dependent_std=True).make(OBS, TWO_NUMBERS)
    params = with_random_weights(policy.init(jax.random.PRNGKey(0)))
    inputs = sequences(6, 1)
    log_std = np.asarray(policy.apply(params, inputs).log_std)
    outputs, _ = plain_unroll(network_of(params), "gru", inputs.carry, inputs.obs, inputs.first)
    np.testing.assert_allclose(log_std, -1 + 5 * np.tanh(outputs[..., 2:] / 5), rtol=1e-4, atol=1e-4)


def test_same_settings_give_the_same_maker_and_spec_strings_round_trip():
    assert gru(hidden=32) is gru(hidden=32)
    assert gru(hidden=32) is not gru(hidden=16)
    for spec in ("gru", "lstm(hidden=32, encoder=(), bptt_steps=8)", "gru(initial_log_std=-1.0)"):
        assert parse("policy", spec).spec_string == spec
    assert gru(hidden=32, initial_log_std=-1.0).critic == "gru(hidden=32)"
    assert recurrent.lstm(bptt_steps=8).critic == "lstm(bptt_steps=8)"


@pytest.mark.parametrize("maker", [gru, lstm])
@pytest.mark.parametrize(
    "setting, value",
    [
        ("hidden", 0),
        ("encoder", (0,)),
        ("bptt_steps", 0),
        ("bptt_steps", 10**6),
        ("initial_log_std", 9),
    ],
)
def test_bad_setting_is_named(maker, setting, value):
    with pytest.raises(ValueError, match=setting):
        maker(**{setting: value})


def test_state_dependent_std_needs_continuous_actions():
    with pytest.raises(ValueError, match="continuous"):
        gru(state_dependent_std=True).make(OBS, CHOICES)


@pytest.mark.parametrize("bptt_steps", [1, 2, 5, 6, 40])
def test_stretches_hold_consecutive_steps(bptt_steps):
    segments, length, envs = 5, 4, 2
    leaf = np.arange(1, 1 + segments * length * envs).reshape(segments, length, envs)
    found = np.asarray(in_stretches(jnp.asarray(leaf), bptt_steps))
    assert found.shape == (num_stretches(segments * length, bptt_steps), bptt_steps, envs)
    flat = found.reshape(-1, envs)
    np.testing.assert_array_equal(flat[: segments * length], leaf.reshape(-1, envs))
    assert not flat[segments * length :].any()


def test_rows_of_sequences_are_stretches_of_one_environment():
    stretches, inputs = 3, sequences(6, 2)
    samples = {
        "obs": jax.tree.map(lambda leaf: jnp.stack([leaf + 10 * i for i in range(stretches)]), inputs),
        "value": jnp.arange(stretches * TIME * ENVS).reshape(stretches, TIME, ENVS),
    }
    rows = to_rows(samples, sequences=True)
    assert rows["value"].shape == (stretches * ENVS, TIME)
    for stretch in range(stretches):
        for env in range(ENVS):
            row = stretch * ENVS + env
            np.testing.assert_array_equal(rows["value"][row], samples["value"][stretch, :, env])
            np.testing.assert_array_equal(rows["obs"].obs[row], samples["obs"].obs[stretch, :, env])
            np.testing.assert_array_equal(rows["obs"].carry[1][row], samples["obs"].carry[1][stretch, env])
    chosen = jax.tree.map(lambda leaf: leaf[np.array([4, 0])], rows)
    back = from_rows(chosen, sequences=True)
    np.testing.assert_array_equal(back["value"][:, 0], samples["value"][1, :, 1])
    np.testing.assert_array_equal(back["obs"].first[:, 1], samples["obs"].first[0, :, 0])
    np.testing.assert_array_equal(back["obs"].carry[0][0], samples["obs"].carry[0][1, 1])


def test_gradient_of_convolutions_matches_finite_differences():
    space = ObservationSpace((Leaf("image", (6, 7, 2), "uint8"), Leaf("vector", (3,))))
    policy, rng = gru(hidden=3, encoder=(4,), channels=(2,)).make(space, CHOICES), np.random.default_rng(0)

    def drawn(like, scale):
        return jax.tree.map(lambda leaf: jnp.float32(scale * rng.normal(size=leaf.shape)), like)

    params = drawn(policy.init(jax.random.PRNGKey(0)), 0.2)
    obs = {
        "image": jnp.asarray(rng.integers(0, 256, (4, 2, 6, 7, 2), np.uint8)),
        "vector": drawn(jnp.zeros((4, 2, 3)), 1.0),
    }
    inputs = Sequences(obs, jnp.zeros((4, 2), bool), (jnp.zeros((2, 3)),))
    function = jax.jit(lambda params: jnp.mean(jnp.concatenate(policy.apply(params, inputs).logits, -1) ** 2))
    along = drawn(params["images"], 1.0)

    def at(step):
        return function({**params, "images": jax.tree.map(lambda leaf, by: leaf + step * by, params["images"], along)})

    gradient = jax.grad(function)(params)["images"]
    found = sum(map(jnp.vdot, jax.tree.leaves(gradient), jax.tree.leaves(along)))
    assert abs(found) > 0.1
    np.testing.assert_allclose(found, (at(1e-3) - at(-1e-3)) / 2e-3, rtol=0.02)


@pytest.mark.parametrize(("maker", "gates"), [(gru, 3), (lstm, 4)])
def test_recurrent_matrix_of_each_gate_is_orthogonal_on_average(maker, gates):
    """Rows of the matrices of all gates side by side are orthogonal, and a gate's part of a row has length 1."""
    params = maker(hidden=16, encoder=(8,)).make(OBS, TWO_NUMBERS).init(jax.random.PRNGKey(0))
    matrix = network_of(params)["recurrent"]
    np.testing.assert_allclose(matrix @ matrix.T, gates * np.eye(16), atol=1e-4)


@pytest.mark.parametrize("maker", [gru, lstm])
def test_default_sizes_are_the_documented_ones(maker):
    """Spec strings of saved runs leave defaults out, so these never change."""
    policy = maker().make(OBS, TWO_NUMBERS)
    layers = network_of(policy.init(jax.random.PRNGKey(0)))
    assert layers["Dense_0"]["kernel"].shape == (OBS, 64) and layers["recurrent"].shape[0] == 64
    assert policy.recurrence.bptt_steps == 16


def test_lists_are_taken_as_sizes():
    assert gru(encoder=[5, 4], channels=[3]) is gru(encoder=(5, 4), channels=(3,))


def test_multiply_adds_count_convolutions_and_the_layers_after_them():
    space = ObservationSpace((Leaf("image", (6, 6, 2), "uint8"),))
    policy = gru(hidden=8, encoder=(5,), channels=(4,)).make(space, CHOICES)
    feed_forward = parse("policy", "cnn(channels=(4,), hidden=5)").make(space, CHOICES)
    params, others = (each.init(jax.random.PRNGKey(0)) for each in (policy, feed_forward))
    rest = sum(leaf.size for leaf in jax.tree.leaves(params["rest"]))
    last = 5 * sum(CHOICES.counts)  # of the feed-forward network, a layer from 5 units
    assert policy.multiply_adds(params) - rest == feed_forward.multiply_adds(others) - last


def test_rows_hold_at_most_the_steps_asked_for():
    assert [rows_of(steps, jnp.ones((12, 5))) for steps in (1, 5, 9, 10, 24)] == [1, 1, 1, 2, 4]
    assert [rows_of(steps, jnp.ones(12)) for steps in (1, 9)] == [1, 9]
