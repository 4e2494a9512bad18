"""Weights of directions: mean slopes, standard errors and the resulting weights."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrpo.algorithms.trpo_replay.weighting import (
    BATCHES,
    DAMPING,
    STEPS,
    WARMUP_BATCHES,
    Evidence,
    add_directions,
    add_slopes,
    no_evidence,
    standard_error,
    weights,
)


def evidence_of(slopes: np.ndarray, directions: int = 2) -> Evidence:
    """Returns the state after batches that measured these slopes along the unit vectors."""
    evidence = add_directions(no_evidence(directions, directions), jnp.eye(directions))
    evidence = evidence._replace(directions=jnp.eye(directions), batches=jnp.int32(1))
    for found in slopes:
        evidence = add_slopes(evidence, jnp.float32(found))
    return evidence


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000), number=st.integers(1, 300))
def test_slopes_are_running_means_with_standard_errors(seed, number):
    slopes = np.random.default_rng(seed).normal(size=(number, 2))
    evidence, share = evidence_of(slopes), np.zeros(0)
    for batch in range(1, number + 1):
        rate = 1 / min(batch, BATCHES)
        share = np.append((1 - rate) * share, rate)
    np.testing.assert_allclose(evidence.slope, share @ slopes, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(evidence.square, share @ slopes**2, rtol=1e-4, atol=1e-5)
    variance = np.maximum(share @ slopes**2 - (share @ slopes) ** 2, 0)
    count = 1 / np.sum(share**2)
    np.testing.assert_allclose(standard_error(evidence), np.sqrt(variance / max(count - 1, 1)), rtol=1e-2, atol=1e-3)


def test_first_batch_measures_no_slopes():
    evidence = add_directions(add_slopes(no_evidence(2, 2), jnp.float32([5.0, 5.0])), jnp.eye(2))
    for found in ([1.0, 2.0], [3.0, -6.0]):
        evidence = add_slopes(evidence, jnp.float32(found))
    np.testing.assert_allclose(evidence.slope, np.array([2.0, -2.0]) / STEPS, rtol=1e-5)
    np.testing.assert_allclose(evidence.square, np.array([5.0, 20.0]) / STEPS**2, rtol=1e-5)
    assert evidence.weight_square == 0.5 and evidence.batches == 3


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1000), number=st.integers(1, 60))
def test_weights_are_non_negative_and_sum_to_one(seed, number):
    rng = np.random.default_rng(seed)
    inner = rng.uniform(-0.9, 0.9)
    found = weights(evidence_of(rng.normal(size=(number, 2))), jnp.float32([[1, inner], [inner, 1]]))
    assert np.all(found >= 0)
    np.testing.assert_allclose(np.sum(found), 1, rtol=1e-5)


def test_clear_slopes_get_proportional_weight_and_unclear_ones_none():
    noise = 1e-3 * np.random.default_rng(0).normal(size=(40, 2))
    noise -= np.mean(noise, axis=0)  # so that the mean slopes are exactly those below
    both = weights(evidence_of(noise + [0.01, 0.03]), jnp.eye(2))
    np.testing.assert_allclose(both, [0.25, 0.75], atol=0.02)
    against = weights(evidence_of(noise + [0.01, -0.03]), jnp.eye(2))
    np.testing.assert_allclose(against, [1, 0], atol=1e-6)
    lost_in_noise = weights(evidence_of(100 * noise * [1e-2, 1] + [0.01, 0.001]), jnp.eye(2))
    np.testing.assert_allclose(lost_in_noise, [1, 0], atol=0.02)
    # A direction without evidence gets no weight just for opposing the first.
    opposite = weights(evidence_of(noise + [0.01, -0.01]), jnp.float32([[1, -0.99], [-0.99, 1]]))
    np.testing.assert_allclose(opposite, [1, 0], atol=1e-6)
    # Without any evidence, only the batch's own direction is left.
    nothing = weights(evidence_of(noise - [0.02, 0.02]), jnp.eye(2))
    np.testing.assert_allclose(nothing, [1, 0], atol=1e-6)


def test_slope_is_shrunk_by_its_noise():
    """A standard error of half the slope leaves 1 - 1/4 of it (James & Stein 1961); the first slope has no error."""
    batches = 40
    noise = np.sqrt(batches - 1) * np.tile([1.0, -1.0], batches // 2)
    slopes = np.stack([np.full(batches, 0.03), 0.02 + 0.01 * noise], axis=1)
    found = weights(evidence_of(slopes), jnp.eye(2))
    np.testing.assert_allclose(found, np.array([0.03, 0.75 * 0.02]) / 0.045, rtol=1e-3)


def test_zero_slopes_leave_only_the_batch_direction():
    np.testing.assert_array_equal(weights(evidence_of(np.zeros((20, 3)), 3), jnp.eye(3)), [1, 0, 0])


def test_correlated_directions_share_weight():
    gram = jnp.float32([[1, 0.5], [0.5, 1]])
    noise = 1e-4 * np.random.default_rng(0).normal(size=(40, 2))
    found = weights(evidence_of(noise + [0.01, 0.02]), gram)
    wanted = np.linalg.solve(np.asarray(gram) + DAMPING * np.eye(2), [0.01, 0.02])
    np.testing.assert_allclose(found, np.maximum(wanted, 0) / np.maximum(wanted, 0).sum(), atol=0.01)


def test_weights_are_equal_until_enough_batches():
    """The first batch has no previous directions, so there is one slope less than there were batches."""
    slopes = np.tile([0.01, 0.03], (WARMUP_BATCHES, 1))
    np.testing.assert_array_equal(weights(evidence_of(slopes[1:]), jnp.eye(2)), [0.5, 0.5])
    np.testing.assert_allclose(weights(evidence_of(slopes), jnp.eye(2)), [0.25, 0.75], rtol=1e-3)


def test_batch_direction_always_keeps_weight():
    """Its slope counts at least as its standard error, here 0.02 / sqrt(39), against a slope of 0.01."""
    batches = 40
    noise = np.tile([1.0, -1.0], batches // 2)
    slopes = np.stack([0.02 * noise - 0.001, np.full(batches, 0.01)], axis=1)
    error = 0.02 / np.sqrt(batches - 1)
    found = weights(evidence_of(slopes), jnp.eye(2))
    np.testing.assert_allclose(found, np.array([error, 0.01]) / (error + 0.01), rtol=1e-3)


def test_non_finite_batch_is_ignored():
    evidence = evidence_of(np.ones((5, 2)))
    broken = add_directions(
        add_slopes(evidence, jnp.float32([jnp.nan, 1.0])), jnp.float32([[jnp.inf, 0.0], [0.0, 1.0]])
    )
    for name in ("slope", "square", "weight_square"):
        np.testing.assert_array_equal(getattr(broken, name), getattr(evidence, name))
    np.testing.assert_array_equal(broken.directions, evidence.directions)
    assert np.all(np.isfinite(weights(broken, jnp.eye(2))))


def test_directions_are_averaged_over_steps():
    evidence = no_evidence(1, 2)
    for _ in range(60):
        evidence = add_directions(evidence, jnp.float32([[1.0, 0.0]]))
    np.testing.assert_allclose(evidence.directions, [[1.0, 0.0]], rtol=1e-4)
    np.testing.assert_allclose(
        add_directions(evidence, jnp.float32([[0.0, 1.0]])).directions, [[1 - 1 / STEPS, 1 / STEPS]], rtol=1e-4
    )
