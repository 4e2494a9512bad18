"""Counted costs of programs against arithmetic by hand, and against XLA's own analysis."""

import jax
import jax.numpy as jnp
import pytest

ROWS, WIDTH, LOOPS = 32, 16, 7


def total(function, *arguments, trips=None):
    """Counts a compiled function, and asks XLA."""
    from common.costs import Cost, Costs

    compiled = jax.jit(function).lower(*arguments).compile()
    found = sum(Costs(compiled.as_text(), trips).by_stage().values(), Cost())
    return found, compiled.cost_analysis()


def product(x, matrix):
    return jnp.tanh(x @ matrix)


def loop(x, matrix, steps):
    with jax.named_scope("looped"):
        return jax.lax.fori_loop(0, steps, lambda _, x: product(x, matrix), x)


X, MATRIX = jnp.ones((ROWS, WIDTH)), jnp.ones((WIDTH, WIDTH))
PRODUCT = 2.0 * ROWS * WIDTH * WIDTH


def test_products_and_transcendental_functions_are_those_of_a_count_by_hand_and_of_xla():
    found, by_xla = total(product, X, MATRIX)
    assert found.transcendental == ROWS * WIDTH == by_xla["transcendentals"]
    assert found.flops - found.transcendental == PRODUCT == by_xla["flops"]
    assert found.bytes == pytest.approx(by_xla["bytes accessed"], rel=0.01)


def test_a_sum_adds_all_its_numbers_but_one():
    assert total(jnp.sum, X)[0].flops == ROWS * WIDTH - 1


@pytest.mark.parametrize(("trips", "times"), [({}, LOOPS), (None, 1)])
def test_a_loop_of_known_length_is_counted_as_often_as_it_runs_or_once(trips, times):
    found, _ = total(lambda x, matrix: loop(x, matrix, LOOPS), X, MATRIX, trips=trips)
    assert found.transcendental == times * ROWS * WIDTH
    assert times * PRODUCT <= found.flops - found.transcendental <= times * (PRODUCT + 2)  # and the loop's counter


@pytest.mark.parametrize(("trips", "times"), [({"looped/while": LOOPS}, LOOPS), ({"other/while": LOOPS}, 1)])
def test_a_loop_of_unknown_length_is_counted_as_often_as_it_is_said_to_run(trips, times):
    found, _ = total(loop, X, MATRIX, jnp.int32(3), trips=trips)
    assert found.transcendental == times * ROWS * WIDTH
