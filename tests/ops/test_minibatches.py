"""Passes over minibatches: which rows are taken, how often and in which order."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import actors, counted_compilations, spread

from jaxtrpo.ops import minibatches
from jaxtrpo.ops.minibatches import Parts, gradient_of_sum, minibatches_for, parts_for, pass_over_minibatches

CAPACITY = 60


def one_pass(num_rows, key, *, size: int, capacity: int = CAPACITY):
    """Returns how often each row was taken, the rows in order (-1 after the last), and the number of steps."""

    def step(carry, rows):
        taken, order, steps = carry
        at = steps * rows.shape[0] + jnp.arange(rows.shape[0])
        return taken.at[rows].add(1), order.at[at].set(rows), steps + 1

    carry = jnp.zeros(capacity, jnp.int32), jnp.full(2 * capacity, -1), jnp.int32(0)
    return pass_over_minibatches(step, carry, jnp.arange(capacity), num_rows, key, size)


@functools.cache
def compiled(size: int):
    return jax.jit(functools.partial(one_pass, size=size))


def run(num_rows: int, size: int, seed: int = 0):
    return jax.device_get(compiled(size)(jnp.int32(num_rows), jax.random.PRNGKey(seed)))


@settings(deadline=None, max_examples=60)
@given(num_rows=st.integers(1, CAPACITY), size=st.sampled_from([1, 5, 7, 20, 60, 64]), seed=st.integers(0, 2**31))
def test_rows_are_taken_at_most_once_and_fill_whole_minibatches(num_rows, size, seed):
    taken, order, steps = run(num_rows, size, seed)
    rows = min(size, CAPACITY)
    assert steps == max(num_rows // rows, 1)
    assert taken.sum() == steps * rows and taken.max() == 1
    if num_rows >= rows:
        assert not taken[num_rows:].any()  # no row without data
    else:
        assert taken[:num_rows].all()  # all rows with data; rows without weight fill up the minibatch
    assert sorted(order[: steps * rows]) == np.flatnonzero(taken).tolist()


@pytest.mark.parametrize("size", [1, 5, 20])
def test_order_is_random_and_depends_only_on_the_key(size):
    num_rows = 40
    orders = [tuple(run(num_rows, size, seed)[1][:num_rows]) for seed in (0, 1, 2, 0)]
    assert orders[0] == orders[3] and len(set(orders)) == 3
    assert orders[0] != tuple(range(num_rows))


def test_skipped_rows_differ_between_passes():
    left_out = [frozenset(np.flatnonzero(run(CAPACITY, 7, seed)[0] == 0)) for seed in range(8)]
    assert {len(rows) for rows in left_out} == {CAPACITY % 7} and len(set(left_out)) > 4


def test_result_does_not_depend_on_rows_gathered_at_once(monkeypatch):
    found = []
    for rows in (1, 15, 10_000):
        monkeypatch.setattr(minibatches, "ROWS_AT_ONCE", rows)
        found.append([one_pass(jnp.int32(n), jax.random.PRNGKey(3), size=5) for n in (4, 5, 33, CAPACITY)])
    for others in found[1:]:
        jax.tree.map(np.testing.assert_array_equal, others, found[0])


def test_number_of_rows_is_traced():
    run(CAPACITY, 5)
    with counted_compilations() as programs:
        steps = [run(num_rows, 5)[2] for num_rows in (1, 12, 33, CAPACITY)]
    assert not programs
    assert steps == [1, 2, 6, 12]


def test_leaves_of_a_row_stay_together():
    rows = {"a": jnp.arange(12.0), "b": (jnp.arange(12.0)[:, None] * jnp.ones(3),)}

    def step(apart, minibatch):
        return apart + jnp.sum(jnp.abs(minibatch["a"][:, None] - minibatch["b"][0]))

    assert pass_over_minibatches(step, jnp.float32(0), rows, jnp.int32(12), jax.random.PRNGKey(0), 4) == 0


@given(num_envs=st.integers(1, 20_000), size=st.integers(1, 4096), per_env=st.floats(0, 8), ratio=st.floats(1e-3, 100))
def test_minibatches_of_many_environments_see_as_many_samples(num_envs, size, per_env, ratio):
    larger, at_once, steps = minibatches_for(num_envs, size, per_env, ratio)
    assert at_once == max(1024 // size, 1)
    assert larger >= size and larger >= per_env * num_envs - 0.5
    assert larger == size or larger <= per_env * num_envs + 0.5
    np.testing.assert_allclose(larger * steps, size * ratio)


class Rows(NamedTuple):
    """Rows of two steps each."""

    x: np.ndarray  # [row, time, parameter]
    weight: np.ndarray  # [row, time]


def rows_of(number: int) -> Rows:
    generator = np.random.default_rng(number)
    return Rows(generator.normal(size=(number, 2, 3)).astype(np.float32), generator.random((number, 2), np.float32))


def total(params, rows):
    return jnp.sum(rows.weight * jnp.sin(rows.x @ params))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("each", [1, 2, 3])
@pytest.mark.parametrize("number", [1, 2, 5, 6, 8])
def test_gradient_in_parts_is_that_of_all_rows(count, each, number):
    """By the sum of cos(x p) x over rows; parts may be fewer rows than parts, or not divide them."""
    rows, params = rows_of(number), np.float32([0.3, -0.2, 0.5])
    wanted = np.einsum("rt,rt,rti->i", rows.weight, np.cos(rows.x @ params), rows.x)
    for shared in (False, True):
        parts = Parts(each, shared)

        def of_actor(params, rows, parts=parts):
            return gradient_of_sum(total, params, rows, parts)

        found = jax.device_get(actors(count).map(of_actor)(spread(params, count), spread(rows, count)))
        for of_one in found:
            np.testing.assert_allclose(of_one, wanted, rtol=2e-5, atol=2e-6)


def test_each_actor_computes_its_own_parts():
    """What an actor has alone, such as other rows, changes its part of the sum only."""
    rows, params = rows_of(4), np.float32([0.3, -0.2, 0.5])
    other = Rows(rows.x, np.stack([rows.weight[0], rows.weight[1], 2 * rows.weight[2], rows.weight[3]]))
    both = jax.tree.map(lambda a, b: np.stack([a, b]), rows, other)

    def of_actor(params, rows):
        return gradient_of_sum(total, params, rows, Parts(1, shared=True))

    found = jax.device_get(actors(2).map(of_actor)(spread(params, 2), both))
    np.testing.assert_allclose(found[0], jax.grad(total)(params, other), rtol=2e-5)
    np.testing.assert_allclose(found[1], found[0], rtol=0)


@pytest.mark.parametrize(
    ("count", "multiply_adds", "steps", "parts"),
    [
        (1, 1e5, 128, Parts(1, False)),
        (2, 1e5, 128, Parts(1, False)),
        (2, 1e5, 200, Parts(1, True)),
        (1, 1e8, 32, Parts(2, False)),
        (1, 1e8, 33, Parts(3, False)),
        (2, 1e8, 64, Parts(2, True)),
        (1, 1e10, 1, Parts(7, False)),
    ],
)
def test_parts_depend_on_arithmetic(count, multiply_adds, steps, parts):
    chosen = []

    def of_actor(value):
        chosen.append(parts_for(lambda _: multiply_adds, {}, steps))
        return value

    actors(count).map(of_actor)(spread(np.float32(0), count))
    assert chosen == [parts]


def test_accelerators_and_processes_do_not_divide_gradients(monkeypatch):
    chosen = []

    def of_actor(value):
        chosen.append(parts_for(lambda _: 1e8, {}, 64))
        return value

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    actors(2).map(of_actor)(spread(np.float32(0), 2))
    monkeypatch.setattr(minibatches, "on_cpu", lambda: False)
    actors(2).map(lambda value: of_actor(value) + 0)(spread(np.float32(0), 2))
    assert chosen == [Parts(4, False), Parts(1, False)]


def test_networks_without_convolutions_and_different_minibatches_are_not_shared():
    chosen = []

    def of_actor(value):
        chosen.append(parts_for(None, {}, 10**6))
        chosen.append(parts_for(lambda _: 1e8, {}, 64, may_share=False))
        return value

    actors(2).map(of_actor)(spread(np.float32(0), 2))
    assert chosen == [Parts(1, False), Parts(4, False)]


@pytest.mark.parametrize(
    ("count", "each", "number", "loops"),
    [(1, 22, 8, 8), (2, 11, 8, 4), (1, 15, 32, 11), (2, 3, 6, 3), (2, 2, 1, 1), (1, 2, 8, 2)],
)
def test_no_part_is_without_rows(count, each, number, loops):
    """Minibatches of stretches have fewer rows than steps; all actors have as many parts, and each has rows."""
    rows, params = rows_of(number), np.float32([0.3, -0.2, 0.5])

    def of_actor(params, rows):
        return gradient_of_sum(total, params, rows, Parts(each, count > 1))

    program = str(jax.make_jaxpr(actors(count).map(of_actor))(spread(params, count), spread(rows, count)))
    assert f"length={loops}" in program.replace(" ", "")
