"""Functions of many rows, a part of them at a time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrpo.ops import in_parts as module
from jaxtrpo.ops.in_parts import in_parts, rows_at_once


@settings(max_examples=25, deadline=None)
@given(number=st.integers(1, 30), at_once=st.none() | st.integers(1, 31))
def test_every_row_has_its_own_result(number, at_once):
    rows = {"a": np.arange(number), "b": np.arange(2.0 * number).reshape(number, 2)}
    most = []

    def function(part):
        most.append(len(part["a"]))
        return part["a"] ** 2, part["b"][:, 0] - part["a"]

    found = in_parts(function, rows, at_once)
    np.testing.assert_array_equal(found[0], np.arange(number) ** 2)
    np.testing.assert_array_equal(found[1], np.arange(number))
    assert max(most) <= (at_once or number)


@pytest.mark.parametrize(
    ("number", "at_once", "parts"),
    [
        (128, 9, [8]),
        (128, 17, [16]),
        (9, 3, [3]),
        (7, 3, [3, 1]),
        (62, 16, [16, 14]),
        (44, 8, [8, 4]),
        (8, 8, [8]),
        (8, None, [8]),
    ],
)
def test_parts_are_equal_if_that_does_not_halve_them(number, at_once, parts):
    seen = []
    jax.make_jaxpr(lambda rows: in_parts(lambda part: seen.append(len(part)) or part, rows, at_once))(jnp.zeros(number))
    assert list(dict.fromkeys(seen)) == parts


def test_a_part_fills_the_cache_but_has_rows_enough_for_matrix_products(monkeypatch):
    assert rows_at_once(1_310) == 100  # half a mebibyte
    assert rows_at_once(10**6) == 8
    assert [rows_at_once(numbers, most_bytes=4_000) for numbers in (100, 10**6)] == [10, 1]
    monkeypatch.setattr(module, "on_cpu", lambda: False)
    assert rows_at_once(2**20) == rows_at_once(2**20, most_bytes=1) == 64
    assert rows_at_once(10**12) == 1
