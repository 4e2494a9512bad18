"""Critics: ridge regression against NumPy least squares, the network against its Adam steps and PopArt rescaling."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probe import ProbeEnvironment
from support import actors, counted_compilations, deal, first, spread

from jaxtrpo.critics import network
from jaxtrpo.critics.critic import CriticMaker, Targets
from jaxtrpo.critics.linear import linear_critic
from jaxtrpo.critics.mlp import mlp, mlp_critic
from jaxtrpo.ops import minibatches
from jaxtrpo.ops.minibatches import Parts
from jaxtrpo.training.prepare import prepare

SEGMENTS, LENGTH, ENVS, OBS = 4, 8, 4, 3
ROWS = LENGTH * ENVS  # in a segment
LINEAR, MLP = "linear", "mlp"
OPTIONS = {LINEAR: {}, MLP: {"hidden": (16,), "epochs": 3, "minibatch_size": 2 * ROWS, "learning_rate": 1e-2}}


def target_function(obs: np.ndarray) -> np.ndarray:
    return 50 + 20 * (np.sin(2 * obs[..., 0]) + obs[..., 1])


def make_targets(seed: int, num_segments: int = SEGMENTS, *, garbage: float | None = None) -> Targets:
    """Returns normal observations, values that depend on them, and some rows without weight, optionally garbage."""
    rng = np.random.default_rng(seed)
    shape = (SEGMENTS, LENGTH, ENVS)
    weight = (rng.random(shape) < 0.9).astype(np.float32)
    weight[num_segments:] = 0
    obs = rng.normal(size=(*shape, OBS)).astype(np.float32)
    value = target_function(obs).astype(np.float32)
    elapsed = rng.integers(0, 1000, shape).astype(np.int32)
    if garbage is not None:
        obs[weight == 0] = garbage
        value[weight == 0] = -1e3 * garbage
        elapsed[weight == 0] = 10**6
    return Targets(obs, elapsed, value, weight, np.int32(num_segments))


def dealt(targets: Targets, count: int) -> Targets:
    return Targets(*(deal(leaf, count) for leaf in targets[:-1]), np.full(count, targets.num_segments, np.int32))


def make(kind: str, count: int = 1, **options):
    """Returns a critic's initial state, its fit by several actors, and its value function; cached."""
    return _make(kind, count, tuple(sorted({**OPTIONS[kind], **options}.items())))


@functools.cache
def _make(kind, count, options):
    critic = {LINEAR: linear_critic, MLP: mlp_critic}[kind](OBS, **dict(options))
    state = jax.device_get(jax.jit(critic.init)(jax.random.PRNGKey(0)))
    if kind == MLP:
        state = with_random_last_layer(state)
    mapped = actors(count).map(critic.fit)

    def fit(state, targets, key=0, rate=1.0):
        others = spread((jax.random.PRNGKey(key), np.float32(rate)), count)
        found = mapped(spread(state, count), dealt(targets, count), *others)
        for leaf in jax.tree.leaves(found):
            np.testing.assert_array_equal(leaf[0], leaf[-1], err_msg="actors disagree")
        return first(found)

    return state, fit, jax.jit(critic.value)


def with_random_last_layer(state):
    """Returns the state with a last layer that is not zero."""
    last = state.params["params"]["last"]
    kernel = np.random.default_rng(0).normal(size=last["kernel"].shape).astype(np.float32)
    layers = {**state.params["params"], "last": {**last, "kernel": kernel / np.linalg.norm(kernel)}}
    return state._replace(params={"params": layers})


def test_network_predicts_zero_before_its_first_fit():
    """Otherwise its initial noise would be preserved, in units of reward, when returns turn out to be small."""
    critic, probe = mlp_critic(OBS), make_targets(1)
    start = critic.init(jax.random.PRNGKey(0))
    np.testing.assert_array_equal(critic.value(start, jnp.asarray(probe.obs), jnp.asarray(probe.elapsed)), 0.0)


@pytest.mark.parametrize("shared_from", [1, 2])
def test_rate_scales_optimiser_steps(shared_from):
    """Adam's first step has the length of the learning rate in every coordinate, whatever the gradient."""
    start, fit, _ = make(MLP, epochs=1, minibatch_size=10**6, normalize_returns=False, shared_from=shared_from)
    whole, half, none = (fit(start, make_targets(3), rate=rate) for rate in (1.0, 0.5, 0.0))
    for full, part, old, same in zip(*(jax.tree.leaves(s.params) for s in (whole, half, start, none)), strict=True):
        np.testing.assert_allclose(part - old, (full - old) / 2, rtol=1e-2, atol=1e-7)
        np.testing.assert_array_equal(same, old)


def plain_features(obs, elapsed):
    time = elapsed.astype(np.float64)[..., None] / 100
    return np.concatenate([obs, obs.astype(np.float64) ** 2, time, time**2, np.ones_like(time)], axis=-1)


def plain_ridge(targets: Targets, ridge: float) -> np.ndarray:
    """Returns the coefficients by least squares with extra rows instead of the normal equations."""
    counts = targets.weight > 0
    x, y = plain_features(targets.obs[counts], targets.elapsed[counts]), targets.value[counts].astype(np.float64)
    rows = np.concatenate([x / np.sqrt(len(y)), np.sqrt(ridge) * np.eye(x.shape[1])])
    return np.linalg.lstsq(rows, np.concatenate([y / np.sqrt(len(y)), np.zeros(x.shape[1])]), rcond=None)[0]


@pytest.mark.parametrize("num_segments", [1, 3, 4])
@pytest.mark.parametrize("ridge", [1e-4, 0.1])
def test_linear_critic_is_ridge_regression(num_segments, ridge):
    targets = make_targets(num_segments, num_segments, garbage=100.0)
    start, fit, value = make(LINEAR, ridge=ridge)
    state = fit(start, targets)
    other = make_targets(99)
    expected = plain_features(other.obs, other.elapsed) @ plain_ridge(targets, ridge)
    np.testing.assert_allclose(value(state, other.obs, other.elapsed), expected, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("rows", [0, 1])
def test_linear_critic_is_ridge_regression_of_one_row_or_none(rows):
    targets = make_targets(0, 1)
    targets = targets._replace(weight=np.zeros_like(targets.weight))
    targets.weight.flat[:rows] = 1
    start, fit, _ = make(LINEAR, ridge=0.1)
    wanted = plain_ridge(targets, 0.1) if rows else np.zeros_like(start)
    np.testing.assert_allclose(fit(start, targets), wanted, rtol=2e-3, atol=1e-4)


def test_linear_critic_forgets_previous_fit():
    start, fit, _ = make(LINEAR)
    targets = make_targets(0)
    np.testing.assert_array_equal(fit(fit(start, make_targets(1)), targets), fit(start, targets))


def test_linear_critic_recovers_true_coefficients():
    coefficients = np.array([1.0, -2.0, 0.5, 0.3, 0.0, -1.0, 4.0, -0.5, 7.0])
    targets = make_targets(2)
    value = (plain_features(targets.obs, targets.elapsed) @ coefficients).astype(np.float32)
    start, fit, _ = make(LINEAR, ridge=1e-7)
    np.testing.assert_allclose(fit(start, targets._replace(value=value)), coefficients, atol=0.02)


def test_mlp_critic_learns_a_function():
    """Measured by the explained variance on unseen observations."""
    state, fit, value = make(MLP)
    for seed in range(150):
        state = fit(state, make_targets(seed), seed)
    unseen = make_targets(999)
    error = value(state, unseen.obs, unseen.elapsed) - unseen.value
    assert 1 - np.var(error) / np.var(unseen.value) > 0.95
    assert abs(np.mean(error)) < 3


def test_new_return_moments_preserve_predictions():
    """With zero epochs, a fit only updates the moments and rescales the last layer, but for the first fit.

    Before it, nothing is known, and what stands for 0 then stands for the mean of the first returns.
    """
    state, fit, value = make(MLP, epochs=0)
    probe = make_targets(99)
    before = value(state, probe.obs, probe.elapsed)
    seen = []
    first = make_targets(0, num_segments=2)
    seen.append(first.value[first.weight > 0])
    state, unknown = fit(state, first), before
    before = value(state, probe.obs, probe.elapsed)
    np.testing.assert_allclose(before, seen[0].mean() + seen[0].std() * unknown, rtol=1e-4)
    assert abs(before.mean() - seen[0].mean()) < 0.2 * seen[0].std() < 0.2 * seen[0].mean()
    for seed, scale in ((1, 1.0), (2, 30.0), (3, 0.01)):
        targets = make_targets(seed, num_segments=2)
        targets = targets._replace(value=scale * targets.value)
        seen.append(targets.value[targets.weight > 0])
        state = fit(state, targets)
        after = value(state, probe.obs, probe.elapsed)
        np.testing.assert_allclose(after, before, rtol=1e-3, atol=2e-6 * np.max(np.abs(np.concatenate(seen))))
        everything = np.concatenate(seen).astype(np.float64)
        assert state.returns.count == len(everything)
        np.testing.assert_allclose(state.returns.mean, everything.mean(), rtol=1e-5)
        np.testing.assert_allclose(state.returns.variance, everything.var(), rtol=1e-4)


@pytest.mark.parametrize("normalize_returns", [True, False])
def test_fit_with_one_full_minibatch_is_one_adam_step(normalize_returns):
    """Adam's first step is learning rate x sign of the gradient of the mean squared error over rows with weight.

    In units of the first returns, of which nothing was known before, the network starts with the layers that it has.
    """
    targets = make_targets(5)
    options = {"epochs": 1, "minibatch_size": SEGMENTS * ROWS, "learning_rate": 1e-3}
    start, fit, _ = make(MLP, normalize_returns=normalize_returns, **options)
    state = fit(start, targets)
    counts = targets.weight > 0
    obs, value = targets.obs[counts], targets.value[counts]
    mean, std = (value.mean(), value.std()) if normalize_returns else (0.0, 1.0)
    layers = jax.tree.map(np.asarray, start.params["params"])

    @jax.jit
    @jax.grad
    def gradient(layers):
        hidden = jnp.tanh(obs @ layers["Dense_0"]["kernel"] + layers["Dense_0"]["bias"])
        prediction = (hidden @ layers["last"]["kernel"] + layers["last"]["bias"])[:, 0]
        return jnp.mean((prediction - (value - mean) / std) ** 2)

    def compare(new, old, slope):
        clear = np.abs(slope) > 1e-4
        assert np.mean(clear) > 0.9
        np.testing.assert_allclose((new - old)[clear], -1e-3 * np.sign(slope)[clear], rtol=1e-2)

    jax.tree.map(compare, state.params["params"], layers, jax.device_get(gradient(layers)))
    assert state.returns.count == (np.sum(counts) if normalize_returns else 0)


@pytest.mark.parametrize("per_env, rows", [(1.0, 6), (2.0, 8), (2.3, 9), (10.0, 40)])
@pytest.mark.parametrize("count", [1, 2])
def test_minibatch_has_steps_of_all_environments(per_env, rows, count):
    """Adam counts the gradient steps: as many in each of two passes as whole minibatches fit into the batch."""
    state, fit, _ = make(MLP, count, epochs=2, minibatch_size=6, minibatch_per_env=per_env)
    fitted = fit(state, make_targets(0))
    (steps,) = {int(leaf) for leaf in jax.tree.leaves(fitted.optimizer) if leaf.ndim == 0}
    assert steps == 2 * (SEGMENTS * ROWS // rows)


def test_fit_does_not_depend_on_rows_gathered_at_once(monkeypatch):
    """Gathers one minibatch at a time, three, or all; 2 to 8 gradient steps per pass."""
    options = tuple({**OPTIONS[MLP], "minibatch_size": ROWS // 2}.items())
    found = []
    for rows in (1, 3 * ROWS // 2, 10_000):
        monkeypatch.setattr(minibatches, "ROWS_AT_ONCE", rows)
        start, fit, _ = _make.__wrapped__(MLP, 1, options)
        found.append([fit(start, make_targets(6, num_segments)) for num_segments in range(1, SEGMENTS + 1)])
    for others in found[1:]:
        jax.tree.map(np.testing.assert_array_equal, others, found[0])


@pytest.mark.parametrize("kind", [LINEAR, MLP])
@pytest.mark.parametrize("num_segments", [1, 3])
def test_rows_without_weight_do_not_matter(kind, num_segments):
    """Holds for broken steps and padding, and for the network also if a minibatch is larger than the batch."""
    start, fit, _ = make(kind)
    expected = fit(start, make_targets(7, num_segments))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(expected))
    for garbage in (10.0, -300.0):
        found = fit(start, make_targets(7, num_segments, garbage=garbage))
        jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("kind", [LINEAR, MLP])
def test_two_actors_fit_the_same_as_one(kind):
    targets, probe = make_targets(8, 3), make_targets(99)
    values = []
    for count in (1, 2):
        start, fit, value = make(kind, count)
        values.append(value(fit(start, targets), probe.obs, probe.elapsed))
    np.testing.assert_allclose(values[1], values[0], rtol=1e-3, atol=1e-2)


def test_shared_fit_averages_actors_after_each_pass():
    """The average is over the results that each actor would get from its own rows alone."""
    options = {"minibatch_size": 8, "epochs": 1, "normalize_returns": False}
    targets = make_targets(8, 3)
    start, fit, _ = make(MLP, 1, shared_from=2, **options)
    own = [fit(start, half(targets, number)) for number in range(2)]
    start, fit, _ = make(MLP, 2, shared_from=2, **options)
    shared = fit(start, targets)
    assert int(shared.optimizer[0].count) == int(own[0].optimizer[0].count) > 1
    parts = [(each.params, each.optimizer[0].mu, each.optimizer[0].nu) for each in (shared, *own)]
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(lambda both, one, other: close(both, (one + other) / 2), *parts)
    assert np.abs(own[0].optimizer[0].mu - own[1].optimizer[0].mu).max() > 1e-3


@pytest.mark.parametrize("count", [1, 2])
def test_gradient_in_parts_is_weighted_like_that_of_the_whole_minibatch(monkeypatch, count):
    """Parts have different numbers of rows that count; Adam's first moment is a tenth of the first gradient."""
    options = {"minibatch_size": 10**6, "epochs": 1, "normalize_returns": False}
    targets = make_targets(8, 3)
    start, fit, _ = make(MLP, 1, **options)
    whole = fit(start, targets).optimizer[0].mu
    monkeypatch.setattr(network, "parts_for", lambda *_, may_share: Parts(3, may_share and count > 1))
    start, fit, _ = make(MLP, count, **options, shared_from=63)  # not the one that is cached
    np.testing.assert_allclose(fit(start, targets).optimizer[0].mu, whole, rtol=1e-4, atol=1e-6)
    assert np.abs(whole).max() > 1e-2


def half(targets, number):
    """Returns the environments of one of two actors."""
    return jax.tree.map(lambda leaf: np.split(leaf, 2, axis=2)[number] if np.ndim(leaf) else leaf, targets)


def test_shared_fit_learns_as_well_as_fit_by_one_actor():
    targets = make_targets(8, 3)
    left = []
    for count, shared_from in ((1, 2), (2, 2)):
        start, fit, value = make(MLP, count, shared_from=shared_from, minibatch_size=8, epochs=40)
        found = fit(start, targets)
        assert found.returns.count == np.sum(targets.weight[:3])
        left.append(np.var((value(found, targets.obs, targets.elapsed) - targets.value)[:3][targets.weight[:3] > 0]))
    assert max(left) < 0.3 * np.var(targets.value[:3][targets.weight[:3] > 0])


@pytest.mark.parametrize("kind", [LINEAR, MLP])
def test_number_of_segments_is_traced(kind):
    start, fit, _ = make(kind)
    fit(start, make_targets(0))
    with counted_compilations() as compiled:
        for num_segments in (1, 2, 3):
            fit(start, make_targets(0, num_segments))
    assert not compiled


def test_minibatch_order_depends_on_the_key():
    start, fit, value = make(MLP)
    targets = make_targets(9)
    same, again, other = (value(fit(start, targets, key), targets.obs, targets.elapsed) for key in (1, 1, 2))
    np.testing.assert_array_equal(same, again)
    assert np.any(other != same)


def test_linear_critic_uses_elapsed_time_and_network_ignores_it():
    obs = np.zeros((2, OBS), np.float32)
    elapsed = np.int32([0, 500])
    start, fit, value = make(LINEAR)
    targets = make_targets(3)
    late = value(fit(start, targets._replace(value=targets.elapsed.astype(np.float32))), obs, elapsed)
    np.testing.assert_allclose(late, [0, 500], atol=1)
    start, _, value = make(MLP, epochs=0)
    same = value(start, obs, elapsed)
    assert same[0] == same[1]


@pytest.mark.parametrize("shape", [lambda obs: obs[..., :1], lambda obs: obs, lambda obs: jnp.zeros(())])
def test_own_critic_that_does_not_return_one_value_per_state_is_refused(shape):
    """Before anything compiles, as for policies."""
    usual = mlp(hidden=(2,)).make(ProbeEnvironment().observation_size)
    critic = CriticMaker("mine", lambda observed: usual._replace(value=lambda state, obs, elapsed: shape(obs)))
    with pytest.raises(ValueError, match=r"^critic=mine must return one value per state, but returns \(.*\) for 3 "):
        prepare(ProbeEnvironment(), critic=critic, actors=1)
    prepare(ProbeEnvironment(), critic=CriticMaker("mine", lambda observed: usual), actors=1)
