"""Advantages and critic targets of a batch against plain float64 loops."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import actors, counted_compilations, deal_batch, first, pad, random_batch, spread, undeal

from jaxtrpo.algorithms.advantages import compare_with_usual, estimate_advantages, standardize
from jaxtrpo.critics.critic import Critic
from jaxtrpo.ops.moments import Moments
from jaxtrpo.ops.running_mean import no_mean
from jaxtrpo.parallel.collectives import Work
from jaxtrpo.rollout.types import Batch

DISCOUNT, LAMBDA = 0.9, 0.8
MOMENTS = Moments(np.float32(10), np.float32([0.3, -0.2, 0.0]), np.float32([4.0, 0.25, 1.0]))
STATE = np.float32([0.5, -1.0, 2.0, 0.01, 0.3])  # of a critic with a simple closed-form value


def known_value(obs, elapsed):
    """Returns the critic's value of raw observations, in float64."""
    normalised = (obs.astype(np.float64) - MOMENTS.mean) / np.sqrt(MOMENTS.variance)
    return np.clip(normalised, -10, 10) @ STATE[:3] + STATE[3] * elapsed + STATE[4]


KNOWN_CRITIC = Critic(
    init=lambda key: jnp.asarray(STATE),
    value=lambda state, obs, elapsed: obs @ state[:3] + state[3] * elapsed + state[4],
    fit=lambda state, targets, key, rate: state,
    work=lambda state, samples: Work(0.0, shared=True),
)


def known_of_actions(obs, action):
    """Returns predicted advantages of actions, given normalised observations."""
    return action[..., 0] * (1.0 + obs[..., 1])


@functools.cache
def mapped(count=1, discount=DISCOUNT, gae_lambda=LAMBDA, known=None):
    def estimate(state, moments, batch):
        unscaled = estimate_advantages(
            KNOWN_CRITIC,
            state,
            moments,
            batch,
            discount=discount,
            gae_lambda=gae_lambda,
            action_advantage=known,
        )
        return standardize(unscaled, moments)

    return actors(count).map(estimate)


def estimate(batch: Batch, count: int = 1, **options):
    """Returns the advantages of the whole batch, computed by `count` actors."""
    found = mapped(count, **options)(spread(STATE, count), spread(MOMENTS, count), deal_batch(batch, count))
    targets = found.targets._replace(
        **{name: undeal(getattr(found.targets, name)) for name in ("obs", "elapsed", "value", "weight")}
    )
    return found._replace(
        advantage=undeal(found.advantage), targets=targets, explained_variance=first(found.explained_variance)
    )


def plain(batch: Batch, discount=DISCOUNT, gae_lambda=LAMBDA, known=None):
    """Computes raw advantages, values minus predicted action advantages, and weights by loops over future steps.

    All are zero where there is no data.
    """
    steps, num = batch.steps, int(batch.num_segments)
    shape = steps.reward.shape
    time = num * shape[1]
    flat = jax.tree.map(lambda leaf: leaf[:num].reshape(time, *leaf.shape[2:]), steps)
    value = known_value(flat.obs, flat.elapsed)
    normalised = np.clip((flat.obs.astype(np.float64) - MOMENTS.mean) / np.sqrt(MOMENTS.variance), -10, 10)
    explained = np.zeros_like(value) if known is None else known(normalised, flat.action)
    advantage = np.zeros((shape[0] * shape[1], shape[2]))
    for env in range(shape[2]):
        for start in range(time):
            factor = 1.0
            for t in range(start, time):
                if flat.invalid[t, env]:
                    break
                if flat.terminated[t, env]:
                    following = 0.0
                elif flat.truncated[t, env] or t == time - 1:
                    following = known_value(flat.final_obs[t, env], flat.elapsed[t, env] + 1)
                else:
                    following = value[t + 1, env]
                error = flat.reward[t, env] + discount * following - value[t, env]
                advantage[start, env] += factor * (error - (explained[t, env] if t > start else 0.0))
                if flat.terminated[t, env] or flat.truncated[t, env]:
                    break
                factor *= discount * gae_lambda
    weight = np.zeros(shape)
    weight[:num] = ~steps.invalid[:num]
    padded = np.zeros(shape)
    padded[:num] = (value - explained).reshape(num, *shape[1:])
    return advantage.reshape(shape), padded, weight


@pytest.mark.parametrize("known", [None, known_of_actions])
@pytest.mark.parametrize("count", [1, 2])
@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**31),
    end=st.sampled_from([0.0, 0.1, 0.5]),
    broken=st.sampled_from([0.0, 0.1]),
    num_segments=st.integers(1, 4),
)
def test_advantages_targets_and_weights_match_plain_loop(count, known, seed, end, broken, num_segments):
    batch = random_batch(seed, end=end, broken=broken, num_segments=num_segments, padding=np.nan)
    found = estimate(batch, count, known=known)
    advantage, value, weight = plain(batch, known=known)
    counts = weight > 0
    np.testing.assert_array_equal(found.targets.weight, weight)
    target, missed = advantage + value, np.zeros_like(advantage)
    np.testing.assert_allclose(found.targets.value[counts], target[counts], rtol=1e-4, atol=1e-4)
    missed[:num_segments] = target[:num_segments] - known_value(batch.steps.obs, batch.steps.elapsed)[:num_segments]
    standardised = (advantage - advantage[counts].mean()) / advantage[counts].std()
    np.testing.assert_allclose(found.advantage[counts], standardised[counts], rtol=1e-3, atol=1e-3)
    assert np.all(found.advantage[~counts] == 0)
    np.testing.assert_allclose(
        found.explained_variance, 1 - missed[counts].var() / target[counts].var(), rtol=1e-3, atol=1e-3
    )
    filled = slice(0, num_segments)
    np.testing.assert_array_equal(found.targets.elapsed[filled], batch.steps.elapsed[filled])
    normalised = (batch.steps.obs[filled] - MOMENTS.mean) / np.sqrt(MOMENTS.variance)
    np.testing.assert_allclose(found.targets.obs[filled], np.clip(normalised, -10, 10), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2])
def test_advantages_have_mean_zero_and_variance_one_over_all_actors(count):
    found = estimate(random_batch(1, broken=0.2, num_segments=3, padding=5.0), count)
    counted = found.advantage[found.targets.weight > 0].astype(np.float64)
    np.testing.assert_allclose([counted.mean(), counted.std()], [0, 1], atol=1e-5)


def test_targets_do_not_depend_on_number_of_actors():
    batch = random_batch(2, num_segments=3)
    one, two = estimate(batch, 1), estimate(batch, 2)
    np.testing.assert_allclose(two.advantage, one.advantage, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(two.targets.value, one.targets.value, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(two.explained_variance, one.explained_variance, rtol=1e-5)


def quiet(**changes) -> Batch:
    """Returns two segments of three steps of four environments without ends, with changes applied to environment 1."""
    batch = random_batch(3, segments=4, num_segments=2, end=0.0, broken=0.0)
    for name, (where, value) in changes.items():
        getattr(batch.steps, name)[(*where, 1)] = value
    return batch


def test_truncated_step_bootstraps_from_final_observation():
    """With lambda 1 the target is the discounted return."""
    at = (0, 1)
    batch = quiet(truncated=(at, True), final_obs=(at, [5.0, -1.0, 2.0]))
    target = estimate(batch, gae_lambda=1.0).targets.value[..., 1]
    steps = batch.steps
    after = known_value(np.float32([5.0, -1.0, 2.0]), steps.elapsed[0, 1, 1] + 1)
    np.testing.assert_allclose(target[0, 1], steps.reward[0, 1, 1] + DISCOUNT * after, rtol=1e-5)
    np.testing.assert_allclose(target[0, 0], steps.reward[0, 0, 1] + DISCOUNT * target[0, 1], rtol=1e-5)


def test_terminated_step_does_not_bootstrap():
    at = (0, 1)
    batch = quiet(terminated=(at, True), final_obs=(at, [5.0, -1.0, 2.0]))
    target = estimate(batch, gae_lambda=1.0).targets.value[..., 1]
    np.testing.assert_allclose(target[0, 1], batch.steps.reward[0, 1, 1], rtol=1e-4, atol=1e-6)


def test_last_step_of_batch_bootstraps_from_final_observation():
    """Also if the buffer is longer than the batch. A last step that terminated does not bootstrap."""
    last = (1, 2)
    batch = quiet(final_obs=(last, [5.0, -1.0, 2.0]))
    after = known_value(np.float32([5.0, -1.0, 2.0]), batch.steps.elapsed[1, 2, 1] + 1)
    reward = batch.steps.reward[1, 2, 1]
    target = estimate(batch, gae_lambda=1.0).targets.value
    np.testing.assert_allclose(target[1, 2, 1], reward + DISCOUNT * after, rtol=1e-5)
    batch = quiet(final_obs=(last, [5.0, -1.0, 2.0]), terminated=(last, True))
    target = estimate(batch, gae_lambda=1.0).targets.value
    np.testing.assert_allclose(target[1, 2, 1], reward, rtol=1e-4, atol=1e-6)


def test_final_observations_of_ordinary_steps_are_not_read():
    batch = quiet(truncated=((0, 1), True))
    other = quiet(truncated=((0, 1), True))
    ordinary = ~other.steps.truncated
    ordinary[1, 2] = False
    other.steps.final_obs[ordinary] = 1e6
    np.testing.assert_array_equal(estimate(other).advantage, estimate(batch).advantage)


def test_padding_does_not_matter():
    batch = random_batch(4, num_segments=2)
    expected = estimate(batch)
    for garbage in (np.nan, 1e20):
        found = estimate(pad(batch, garbage))
        np.testing.assert_array_equal(found.advantage, expected.advantage)
        np.testing.assert_array_equal(found.targets.value, expected.targets.value)
        np.testing.assert_array_equal(found.targets.weight, expected.targets.weight)
        np.testing.assert_array_equal(found.explained_variance, expected.explained_variance)


def test_number_of_segments_is_traced():
    estimate(random_batch(5))
    with counted_compilations() as compiled:
        for num_segments in (1, 2, 3):
            estimate(random_batch(6, num_segments=num_segments))
    assert not compiled


def test_batch_with_one_valid_step_has_advantage_zero():
    batch = random_batch(7, num_segments=1, broken=1.0)
    batch.steps.invalid[0, 1, 2] = False
    found = estimate(batch)
    np.testing.assert_array_equal(found.advantage, np.zeros_like(found.advantage))


@settings(max_examples=30, deadline=None)
@given(
    # XLA flushes numbers below 1e-38 to zero, which running means of tiny variances would reach.
    variances=st.lists(
        st.floats(2.0**-60, 1e6, width=32) | st.sampled_from([0.0, np.nan, np.inf]), min_size=1, max_size=12
    ),
    memory=st.integers(1, 5),
)
def test_usual_variance_is_running_mean_over_updates(variances, memory):
    """The mean covers all updates up to `memory`, after which old ones fade; non-finite variances are ignored."""
    usual, mean, count = no_mean(), 0.0, 0
    for variance in variances:
        usual, share = compare_with_usual(usual, jnp.float32(variance), memory)
        if np.isfinite(variance):
            count += 1
            rate = 1 / min(count, memory)
            mean = (1 - rate) * mean + rate * variance
            expected = min(1.0, variance / mean) if mean > 0 else 1.0
            np.testing.assert_allclose(share, expected, rtol=1e-4)
        else:
            assert share == 1
        np.testing.assert_allclose(usual.mean, mean, rtol=1e-4, atol=1e-30)
        assert usual.count == count


def test_exact_values_explain_all_variance_with_action_advantages():
    """In one-step episodes with reward V(s) + C(s, a), the predicted action advantage is the critic's only error."""
    batch = random_batch(6, end=0.0, broken=0.0, num_segments=4)
    steps = batch.steps
    normalised = np.clip((steps.obs - MOMENTS.mean) / np.sqrt(MOMENTS.variance), -10, 10)
    action = np.float32(np.random.default_rng(6).normal(size=steps.action.shape) * 3)
    reward = known_value(steps.obs, steps.elapsed) + known_of_actions(normalised, action)
    ended = np.ones_like(steps.terminated)
    steps = steps._replace(action=action, reward=np.float32(reward), terminated=ended, truncated=~ended)
    found = estimate(batch._replace(steps=steps), known=known_of_actions)
    np.testing.assert_allclose(found.explained_variance, 1.0, atol=1e-5)
    assert estimate(batch._replace(steps=steps)).explained_variance < 0.9
