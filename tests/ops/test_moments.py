"""Running mean and variance against float64 NumPy on all data at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrpo.ops.moments import (
    Moments,
    merge,
    no_moments,
    normalize,
    observation_moments,
    unknown_moments,
    weighted_moments,
)

merge_compiled = jax.jit(merge)
moments_compiled = jax.jit(weighted_moments)
observed_compiled = jax.jit(observation_moments)
numbers = st.floats(-1e3, 1e3, width=32)
batches = st.lists(numbers, min_size=0, max_size=8)


def moments_of(values: list[float]) -> Moments:
    """Returns the moments of up to 8 numbers, padded with zero weight so that one compilation serves all lengths."""
    padded = np.full(8, 7.0, np.float32)
    padded[: len(values)] = values
    return moments_compiled(padded, (np.arange(8) < len(values)).astype(np.float32))


def assert_moments_of(moments: Moments, values, rtol=1e-4):
    values = np.asarray(values, np.float64)
    spread = max(np.std(values), 1e-3 * np.max(np.abs(values)), 1e-3)  # the resolution of float32
    assert moments.count == len(values)
    np.testing.assert_allclose(moments.mean, np.mean(values), rtol=rtol, atol=rtol * spread)
    np.testing.assert_allclose(moments.variance, np.var(values), rtol=rtol, atol=rtol * spread**2)


@pytest.mark.parametrize("offset", [0.0, 1e3, -1e4])
def test_thousands_of_merges_stay_accurate(offset):
    """Even far from zero, where a difference of mean squares would cancel."""
    rng = np.random.default_rng(0)
    values = (offset + rng.normal(size=(3000, 16, 3)) * [0.5, 1.0, 2.0]).astype(np.float32)
    weight = (rng.random((3000, 16)) < 0.7).astype(np.float32)
    weight[rng.random(3000) < 0.1] = 0.0

    @jax.jit
    def run(values, weight):
        def add(moments, batch):
            return merge(moments, weighted_moments(*batch)), None

        return jax.lax.scan(add, no_moments((3,)), (values, weight))[0]

    moments = run(values, weight)
    kept = values[weight > 0].astype(np.float64)
    assert moments.count == len(kept)
    # A mean of 10,000 has a resolution of 0.001 in float32; what counts is the error in standard deviations.
    np.testing.assert_allclose((moments.mean - kept.mean(0)) / kept.std(0), 0, atol=2e-4 + 2e-6 * abs(offset))
    np.testing.assert_allclose(moments.variance, kept.var(0), rtol=2e-3)


@settings(deadline=None, max_examples=100)
@given(batches.filter(len), batches.filter(len))
def test_merged_moments_match_moments_of_all_data(a, b):
    assert_moments_of(merge_compiled(moments_of(a), moments_of(b)), a + b)


@settings(deadline=None, max_examples=100)
@given(batches, batches, batches)
def test_order_of_merging_does_not_matter(a, b, c):
    a, b, c = moments_of(a), moments_of(b), moments_of(c)
    left = merge_compiled(merge_compiled(a, b), c)
    for other in (merge_compiled(a, merge_compiled(b, c)), merge_compiled(c, merge_compiled(b, a))):
        if left.count > 0:
            spread = max(float(left.std), 1e-3 * abs(float(left.mean)), 1e-3)
            np.testing.assert_allclose(other.mean, left.mean, rtol=1e-5, atol=1e-5 * spread)
            np.testing.assert_allclose(other.variance, left.variance, rtol=1e-4, atol=1e-4 * spread**2)
        assert other.count == left.count


@settings(deadline=None, max_examples=30)
@given(batches)
def test_empty_batch_changes_nothing(values):
    moments = moments_of(values)
    for merged in (merge_compiled(moments, moments_of([])),):
        for new, old in zip(merged, moments, strict=True):
            np.testing.assert_allclose(new, old, rtol=1e-6)


@settings(deadline=None, max_examples=30)
@given(batches.filter(len))
def test_first_batch_replaces_initial_moments(values):
    """The initial variance of 1 must not count."""
    moments = moments_of(values)
    merged = merge_compiled(no_moments(()), moments)
    for new, old in zip(merged, moments, strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6, atol=1e-30)


def test_empty_moments_merged_with_empty_batch_leave_values_unchanged():
    nothing = merge_compiled(no_moments((2,)), moments_compiled(np.ones((4, 2), np.float32), np.zeros(4, np.float32)))
    values = np.array([[0.5, -3.0]], np.float32)
    np.testing.assert_array_equal(normalize(values, nothing), values)


def test_weight_selects_over_all_leading_axes():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(3, 4, 5, 2)).astype(np.float32)
    weight = (rng.random((3, 4, 5)) < 0.4).astype(np.float32)
    moments = moments_compiled(values, weight)
    kept = values[weight > 0].astype(np.float64)
    assert moments.count == len(kept)
    np.testing.assert_allclose(moments.mean, kept.mean(0), rtol=1e-5)
    np.testing.assert_allclose(moments.variance, kept.var(0), rtol=1e-5)


@pytest.mark.parametrize("num_segments", [0, 1, 3, 5])
def test_only_filled_segments_count_in_moments(num_segments):
    """The rest of the buffer may hold anything, regardless of its weight."""
    rng = np.random.default_rng(5)
    values, weight = rng.normal(size=(5, 7, 2)).astype(np.float32), (rng.random((5, 7)) < 0.6).astype(np.float32)
    kept = values[:num_segments][weight[:num_segments] > 0].astype(np.float64)
    values[num_segments:] = np.nan
    moments = moments_compiled(values, weight, num_segments=jnp.int32(num_segments))
    assert moments.count == len(kept)
    if num_segments:
        np.testing.assert_allclose(moments.mean, kept.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(moments.variance, kept.var(0), rtol=1e-5)
    else:
        np.testing.assert_array_equal(moments.mean, 0.0)


def test_values_without_weight_do_not_matter():
    rng = np.random.default_rng(2)
    values, weight = rng.normal(size=(40, 2)).astype(np.float32), (np.arange(40) % 3 > 0).astype(np.float32)
    other = np.where(weight[:, None] > 0, values, np.float32(1e6))
    for ours, theirs in zip(moments_compiled(values, weight), moments_compiled(other, weight), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("constant", [0.0, 1.0, -0.3, 9.81, 1234.567, 9.81e-7, 9.81e9])
@pytest.mark.parametrize("rows", [3, 1000, 20_480])
def test_constant_input_is_normalised_to_zero(constant, rows):
    """Rounding error in the sum of many equal values must not count as variation."""
    values = np.full((rows, 1), constant, np.float32)
    moments = unknown_moments((1,))
    for _ in range(20):
        moments = merge_compiled(moments, moments_compiled(values, np.ones(rows, np.float32)))
    np.testing.assert_allclose(moments.mean, constant, rtol=1e-6)
    assert not np.any(moments.varies)
    assert np.all(np.asarray(moments.std) == (abs(np.asarray(moments.mean)) or 1.0))
    np.testing.assert_array_equal(normalize(np.float32([[1.001], [0.0], [-2.0]]) * values[:1], moments), 0.0)


@pytest.mark.parametrize("size", [1e-15, 1e-7, 1.0, 1e7, 1e15])
@pytest.mark.parametrize("offset", [0.0, 10.0, 1e4])
def test_normalisation_does_not_depend_on_units(size, offset):
    values = (size * (offset + np.random.default_rng(4).normal(size=(2000, 1)))).astype(np.float32)
    moments = merge_compiled(unknown_moments((1,)), moments_compiled(values, np.ones(2000, np.float32)))
    assert np.all(moments.varies)
    normalised = np.asarray(normalize(values, moments), np.float64)
    np.testing.assert_allclose(normalised.std(), 1, rtol=1e-3)
    exact = values.astype(np.float64)
    np.testing.assert_allclose(moments.variance, exact.var(0), rtol=1e-3)


def test_unknown_moments_normalise_to_zero():
    np.testing.assert_array_equal(normalize(np.float32([[20.0, -1e-9]]), unknown_moments((2,))), 0.0)


def test_normalising_with_no_moments_does_not_clip():
    values = np.float32([[20.0, -3e7]])
    np.testing.assert_array_equal(normalize(values, no_moments((2,))), values)


def test_normalised_data_has_mean_zero_and_variance_one():
    rng = np.random.default_rng(3)
    values = (50 + 3 * rng.normal(size=(2000, 2))).astype(np.float32)
    normalised = np.asarray(normalize(values, moments_compiled(values, np.ones(2000, np.float32))), np.float64)
    np.testing.assert_allclose(normalised.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(normalised.std(0), 1, rtol=1e-4)


def test_normalised_outliers_are_clipped():
    moments = Moments(jnp.float32(100), jnp.zeros(2), jnp.ones(2))
    np.testing.assert_array_equal(normalize(jnp.array([[1e9, -11.0]]), moments), [[10.0, -10.0]])
    np.testing.assert_array_equal(normalize(jnp.array([[3.0, -4.0]]), moments, limit=3.5), [[3.0, -3.5]])


def forces(share, rows=4000, size=1.0, seed=7):
    """Returns numbers [rows] that are 0 but for a share of them, in which they are normal."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(rows) < share, size * rng.normal(size=rows), 0.0).astype(np.float32)


@pytest.mark.parametrize("size", [1e-15, 1.0, 1e15])
@pytest.mark.parametrize("share", [0.001, 0.05, 0.3, 0.48])
def test_rare_events_count_with_more_variance(share, size):
    values = forces(share, size=size)[:, None] + np.array([[0.0, 1.0]], np.float32) * (forces(share) != 0)[:, None]
    moments = observed_compiled(values, np.ones(len(values), np.float32))
    for column, mean, variance in zip(values.T.astype(np.float64), moments.mean, moments.variance, strict=True):
        events = column[column != 0]
        various = np.var(events) / np.mean(events**2)
        factor = 1 + 10 * various * (len(column) / len(events) - 2)
        np.testing.assert_allclose(mean, np.mean(column), rtol=1e-4)
        np.testing.assert_allclose(variance, factor * np.var(column), rtol=5e-3)


@pytest.mark.parametrize(("rows", "ones"), [(32_768, 1), (32_768, 10), (131_072, 30), (1_000_000, 3)])
@pytest.mark.parametrize("value", [1.0, 7.3, -1e-4])
def test_rare_flags_of_large_batches_keep_their_variance(rows, ones, value):
    """Rounding error in how much their values vary would be multiplied by the number of steps for each."""
    values = np.zeros((rows, 1), np.float32)
    values[np.random.default_rng(9).choice(rows, ones, replace=False)] = value
    weight = np.ones(rows, np.float32)
    for ours, plain in zip(observed_compiled(values, weight), moments_compiled(values, weight), strict=True):
        np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize("size", [1e-25, 1e18])
def test_rare_events_of_extreme_sizes_have_finite_moments(size):
    for found in observed_compiled(forces(0.05, size=size)[:, None], np.ones(4000, np.float32)):
        assert np.all(np.isfinite(found))


def test_segments_without_data_are_not_even_copied():
    values, weight = np.zeros((64, 256, 1, 100), np.float32), np.ones((64, 256, 1), np.float32)
    used = observed_compiled.lower(values, weight, num_segments=jnp.int32(1)).compile().memory_analysis()
    assert used.temp_size_in_bytes < values.nbytes / 8


def test_rare_events_count_more_in_small_batches_too():
    """Up to what a batch of 64 can tell about events in one of 25 steps."""
    values = forces(0.04, 6400).reshape(100, 64, 1)

    def add(moments, batch):
        return merge(moments, observation_moments(batch, jnp.ones(64))), None

    merged = jax.jit(lambda values: jax.lax.scan(add, unknown_moments((1,)), values)[0])(values)
    assert 80 * np.var(values) < merged.variance[0] < 230 * np.var(values)  # 1 + 10 (1 / 0.04 - 2) = 231


def test_rare_events_have_a_size_below_one():
    values = forces(0.01)[:, None]
    moments = observed_compiled(values, np.ones(len(values), np.float32))
    events = np.asarray(normalize(values, moments))[values != 0]
    assert 0.3 < np.sqrt(np.mean(events**2)) < 0.35  # 1 / sqrt(10), plus the variance without the factor
    plain = np.asarray(normalize(values, moments_compiled(values, np.ones(len(values), np.float32))))[values != 0]
    assert np.sqrt(np.mean(plain**2)) > 7  # 10 without the clipping


@pytest.mark.parametrize(
    "values",
    [
        forces(0.55),
        3 + forces(0.05),
        forces(0.05) != 0,
        -7.0 * (forces(0.3) != 0),
        0.3 * np.sign(forces(0.1)),
        np.zeros(50),
    ],
)
def test_common_values_and_those_of_one_size_keep_their_variance(values):
    values = np.asarray(values, np.float32)[:, None]
    weight = np.ones(len(values), np.float32)
    for ours, plain in zip(observed_compiled(values, weight), moments_compiled(values, weight), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-4)


@pytest.mark.parametrize(("share", "stays"), [(0.02, True), (0.012, False)])
def test_values_of_one_size_are_events_only_if_they_are_very_rare(share, stays):
    values = np.zeros((4000, 1), np.float32)
    values[: int(4000 * share)] = 0.3
    values[: int(2000 * share)] *= -1
    ours, plain = (
        each(values, np.ones(4000, np.float32)).variance[0] for each in (observed_compiled, moments_compiled)
    )
    np.testing.assert_allclose(ours / plain, 1 if stays else 1 + 10 * (1 / share - 2), rtol=1e-3)


def test_rare_events_are_counted_where_weight_and_segments_say():
    rng = np.random.default_rng(8)
    values = forces(0.1, 6 * 500).reshape(6, 500, 1)
    weight = (rng.random((6, 500)) < 0.5).astype(np.float32)
    kept = values[:4][weight[:4] > 0]
    alone = observed_compiled(kept, np.ones(len(kept), np.float32))
    values[4:] = np.nan
    values[:4][weight[:4] == 0] = 5.0
    for ours, expected in zip(observed_compiled(values, weight, num_segments=jnp.int32(4)), alone, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)


def test_rare_events_of_all_devices_count():
    """Each of two devices holds all events or none: the share of both together counts."""
    values = np.stack([forces(0.4, 1000), np.zeros(1000, np.float32)])[..., None]
    sharded = jax.vmap(
        lambda part: observation_moments(part, jnp.ones(1000), lambda total: jax.lax.psum(total, "device")),
        axis_name="device",
    )(values)
    for ours, expected in zip(sharded, observed_compiled(values, np.ones((2, 1000), np.float32)), strict=True):
        np.testing.assert_allclose(ours[0], expected, rtol=1e-5)
