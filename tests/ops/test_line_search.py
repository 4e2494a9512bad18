"""Backtracking line search: accepted points, refused points and diagnostics."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrpo.ops.line_search import Trial, backtracking_line_search

START = {"w": np.array([0.1, -0.3], np.float32), "b": np.float32(1 / 3)}
BEFORE = -0.25  # objective at START
STEP = {"w": np.array([1.0, 2.0], np.float32), "b": np.float32(-1.0)}


def search(objective, kl, *, max_kl=1.0, shrink=0.5, max_trials=10, step=STEP):
    """Searches from START, with the rise of the objective and the KL as functions of the fraction of the step."""

    @jax.jit
    def run(params, step, max_kl):
        def evaluate(candidate):
            fraction = candidate["w"][0] - params["w"][0]
            return Trial(jnp.float32(BEFORE + objective(fraction)), jnp.float32(kl(fraction)))

        return backtracking_line_search(
            evaluate,
            params,
            step,
            max_kl=max_kl,
            start_objective=jnp.float32(BEFORE),
            shrink=shrink,
            max_trials=max_trials,
        )

    return run(jax.tree.map(jnp.asarray, START), jax.tree.map(jnp.asarray, step), jnp.float32(max_kl))


def assert_no_step(params, info, trials):
    for name, leaf in START.items():
        np.testing.assert_array_equal(np.asarray(params[name]).view(np.uint32), leaf.view(np.uint32))
    assert not info.accepted
    assert info.trials == trials
    assert info.scale == info.improvement == info.kl == 0


def test_full_step_is_taken_if_acceptable():
    params, info = search(lambda f: f, lambda f: 0.5 * f)
    np.testing.assert_allclose(params["w"], START["w"] + STEP["w"], rtol=1e-6)
    np.testing.assert_allclose(params["b"], START["b"] + STEP["b"], rtol=1e-6)
    assert info.accepted
    assert info.trials == 1
    assert info.scale == 1
    np.testing.assert_allclose([info.improvement, info.kl], [1.0, 0.5], rtol=1e-6)


@settings(deadline=None, max_examples=15)
@given(turn=st.floats(0.01, 3.0), reach=st.floats(0.01, 3.0), shrink=st.sampled_from([0.5, 0.8]))
def test_first_point_that_improves_within_the_bound_is_taken(turn, reach, shrink):
    params, info = search(lambda f: f * (turn - f), lambda f: f**2, max_kl=reach**2, shrink=shrink, max_trials=8)
    good = [k for k in range(8) if shrink**k < 0.999 * turn and shrink**k < 0.999 * reach]
    unclear = [k for k in range(8) if min(abs(shrink**k / turn - 1), abs(shrink**k / reach - 1)) < 1e-3]
    if unclear:
        return
    if not good:
        assert_no_step(params, info, 8)
        return
    scale = shrink ** good[0]
    assert info.accepted
    assert info.trials == good[0] + 1
    np.testing.assert_allclose(info.scale, scale, rtol=1e-6)
    np.testing.assert_allclose(params["w"], START["w"] + scale * STEP["w"], rtol=1e-5)
    np.testing.assert_allclose(info.kl, scale**2, rtol=1e-4)
    np.testing.assert_allclose(info.improvement, scale * (turn - scale), rtol=1e-3, atol=1e-6)


def test_worse_objective_is_refused_however_small_the_kl():
    assert_no_step(*search(lambda f: -f, lambda f: 0.0), trials=10)


def test_equal_objective_is_refused():
    assert_no_step(*search(lambda f: 0.0, lambda f: 0.0), trials=10)


def test_kl_above_the_bound_is_refused_however_good_the_objective():
    assert_no_step(*search(lambda f: 1e6, lambda f: 1.001), trials=10)


def test_kl_at_the_bound_is_accepted():
    _, info = search(lambda f: f, lambda f: 1.0)
    assert info.accepted
    assert info.trials == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_objective_is_refused(bad):
    assert_no_step(*search(lambda f: bad, lambda f: 0.0), trials=10)
    params, info = search(lambda f: jnp.where(f > 0.3, bad, f), lambda f: 0.0)
    assert info.accepted
    assert info.trials == 3
    np.testing.assert_allclose(params["w"], START["w"] + 0.25 * STEP["w"], rtol=1e-6)


def test_kl_of_nan_is_refused():
    assert_no_step(*search(lambda f: f, lambda f: jnp.nan), trials=10)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_parameters_are_refused_even_if_the_objective_is_finite(bad):
    step = {**STEP, "b": np.float32(bad)}
    assert_no_step(*search(lambda f: 1.0, lambda f: 0.0, step=step), trials=10)


@pytest.mark.parametrize("max_trials", [1, 3, 7])
def test_gives_up_after_the_given_number_of_trials(max_trials):
    assert_no_step(*search(lambda f: -1.0, lambda f: 0.0, max_trials=max_trials), trials=max_trials)


def test_bound_and_step_can_be_vmapped():
    """Runs several searches at once, each with its own step and bound."""

    def run(step, max_kl):
        return backtracking_line_search(
            lambda x: Trial(x, x**2), jnp.zeros(()), step, max_kl=max_kl, start_objective=jnp.zeros(()), shrink=0.5
        )

    x, info = jax.vmap(run)(jnp.array([1.0, 1.0, -1.0]), jnp.array([1.0, 0.1, 1.0]))
    np.testing.assert_allclose(x, [1.0, 0.25, 0.0])
    np.testing.assert_array_equal(info.accepted, [True, True, False])
    np.testing.assert_array_equal(info.trials, [1, 3, 10])
