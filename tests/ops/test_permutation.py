"""Random permutations: every entry occurs once, and no order is more likely than another."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from jaxtrpo.ops.permutation import shuffled

compiled = jax.jit(shuffled)


def order(seed: int, count: int, size: int = 300) -> np.ndarray:
    """Returns the whole permutation, computed by one compiled function for all counts."""
    return np.asarray(compiled(jax.random.PRNGKey(seed), jnp.arange(size), count))


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**31), st.integers(0, 300))
def test_every_entry_occurs_once_and_positions_beyond_count_are_unchanged(seed, count):
    found = order(seed, count)
    assert sorted(found[:count]) == list(range(count))
    np.testing.assert_array_equal(found[count:], np.arange(count, 300))


def test_entry_does_not_depend_on_other_positions_requested():
    whole = order(3, 250)
    some = compiled(jax.random.PRNGKey(3), jnp.array([[7, 240], [0, 111]]), 250)
    np.testing.assert_array_equal(some, whole[np.array([[7, 240], [0, 111]])])


def test_large_counts():
    count = 2**31 - 5
    found = np.asarray(compiled(jax.random.PRNGKey(0), jnp.arange(1000), count))
    assert len(set(found.tolist())) == 1000 and found.min() >= 0 and found.max() < count
    assert abs(found.mean() / count - 0.5) < 0.05


def test_entries_and_distances_of_neighbours_are_uniform():
    """Over many keys, entries and the distances between two of them are distributed as in a fair shuffle."""
    count, trials = 24, 6000
    keys = jax.random.split(jax.random.PRNGKey(9), trials)
    orders = np.asarray(jax.vmap(lambda key: shuffled(key, jnp.arange(count), count))(keys))
    for place in (0, 1, 11, 23):
        seen = np.bincount(orders[:, place], minlength=count)
        assert stats.chisquare(seen).pvalue > 1e-4
    for first, second in ((0, 1), (4, 5), (3, 19)):
        apart = (orders[:, second] - orders[:, first]) % count
        seen = np.bincount(apart, minlength=count)[1:]
        assert stats.chisquare(seen).pvalue > 1e-4
