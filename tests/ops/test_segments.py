"""Sums and maps over the filled segments of a buffer against NumPy, with garbage in the rest."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrpo.ops.moments import weighted_moments
from jaxtrpo.ops.segments import map_segments, sum_and_map_segments, sum_over_segments

BUFFER = np.random.default_rng(0).normal(size=(5, 3, 2)).astype(np.float32)


def with_garbage(filled: int) -> np.ndarray:
    buffer = BUFFER.copy()
    buffer[filled:] = np.nan
    return buffer


@pytest.mark.parametrize("filled", [0, 1, 3, 5])
def test_only_filled_segments_count(filled):
    buffer, known = with_garbage(filled), BUFFER[:filled]
    number = jnp.int32(filled)
    total = jax.jit(lambda b, n: sum_over_segments(lambda i: (b[i], jnp.sum(b[i] > 0)), n))(buffer, number)
    np.testing.assert_allclose(total[0], known.sum(axis=0), rtol=1e-5, atol=1e-6)
    assert total[1] == np.sum(known > 0)
    made = jax.jit(lambda b, n: map_segments(lambda i: (2 * b[i, :, 0], b[i] > 0), n, len(buffer)))(buffer, number)
    np.testing.assert_array_equal(made[0][:filled], 2 * known[..., 0])
    np.testing.assert_array_equal(made[1][:filled], known > 0)
    assert not np.any(made[0][filled:]) and not np.any(made[1][filled:])
    both = jax.jit(lambda b, n: sum_and_map_segments(lambda i: (b[i, 0], b[i, 1]), n, len(buffer)))(buffer, number)
    np.testing.assert_allclose(both[0], known[:, 0].sum(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(both[1][:filled], known[:, 1])


@pytest.mark.parametrize("filled", [1, 3, 5])
def test_moments_of_filled_segments(filled):
    weight = np.ones((5, 3), np.float32)
    weight[0, 1] = 0.0
    found = jax.jit(weighted_moments)(with_garbage(filled), weight, num_segments=jnp.int32(filled))
    known = BUFFER[:filled][weight[:filled] > 0]
    assert found.count == len(known)
    np.testing.assert_allclose(found.mean, known.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.variance, known.var(axis=0), rtol=1e-4)
