"""Natural gradient steps without a line search (npg) and with a KL penalty (trpo_penalty)."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import actors, first, spread, step_of
from test_policy_step import (
    SHAPES,
    arguments,
    as_vector,
    assert_untouched,
    dense,
    make_problem,
    mapped_step,
    plain_kl,
    plain_surrogate,
)

from jaxtrpo.algorithms.trpo_penalty import FIRST_PENALTY, PENALTY_RANGE, moved
from jaxtrpo.policies.networks import gaussian_policy

SHAPE, DAMPING = SHAPES[1], 0.05
NATURAL = f"cg_iterations=40, cg_damping={DAMPING}, fisher_samples=1000000"


@functools.cache
def compiled(words: str, shape=SHAPE, count: int = 1):
    step, no_memory = step_of(words, gaussian_policy(*shape[:2], hidden=shape[2]))
    return actors(count).map(step), no_memory


def run(words: str, problem, *, shape=SHAPE, count: int = 1, memory=None, seed: int = 0, **hyperparameters):
    """Returns parameters, memory and info after one step."""
    step, no_memory = compiled(words, shape, count)
    params, _, action, found, _, key = arguments(problem, 1.0, count, seed)
    memory = spread(no_memory(problem.params) if memory is None else memory, count)
    now = {name: np.full(count, value, np.float32) for name, value in hyperparameters.items()}
    return map(first, step(params, memory, action, found, now, key))


# ---- npg


@pytest.mark.parametrize("max_kl", [1e-4, 0.01, 1.0])
def test_npg_step_is_natural_gradient_scaled_to_the_bound(max_kl):
    problem = make_problem(7, SHAPE)
    new, _, info = run(f"npg({NATURAL})", problem, max_kl=max_kl)
    expected = dense(problem, SHAPE, DAMPING)
    full_step = np.sqrt(2 * max_kl / expected.curvature) * expected.direction
    np.testing.assert_allclose(as_vector(new) - expected.params, full_step, rtol=5e-3, atol=2e-6)
    np.testing.assert_allclose(info["kl"], plain_kl(problem, new), rtol=1e-2, atol=1e-6)
    rise = plain_surrogate(problem, new) - plain_surrogate(problem, problem.params)
    np.testing.assert_allclose(info["improvement"], rise, rtol=1e-2, atol=1e-5)
    assert info["accepted"] and "line_search_steps" not in info


def test_npg_takes_full_step_where_trpo_backtracks():
    problem, options = make_problem(2, SHAPE, weights=1.0), {"cg_iterations": 40, "cg_damping": DAMPING}
    for max_kl in (1e-4, 4.0):
        searched, found = map(first, mapped_step(SHAPE, **options)(*arguments(problem, max_kl)))
        full, _, info = run(f"npg({NATURAL})", problem, max_kl=max_kl)
        taken, whole = (as_vector(params) - as_vector(problem.params) for params in (searched, full))
        np.testing.assert_allclose(taken, 0.8 ** (int(found.line_search_steps) - 1) * whole, rtol=1e-3, atol=1e-6)
        if max_kl == 4.0:
            assert found.line_search_steps > 1 and info["improvement"] != found.improvement


@pytest.mark.parametrize("algorithm", ["npg", "trpo_penalty"])
@pytest.mark.parametrize("advantage", [0.0, np.nan, np.inf])
def test_zero_or_non_finite_advantages_leave_policy_unchanged(algorithm, advantage):
    problem = make_problem(2)
    problem = problem._replace(advantage=np.full_like(problem.advantage, advantage))
    new, _, info = run(algorithm, problem, shape=SHAPES[0], max_kl=0.01, target_kl=0.01)
    assert_untouched(new, problem.params)
    assert info["kl"] == info["improvement"] == 0


@pytest.mark.parametrize("algorithm", ["npg(cg_iterations=5)", "trpo_penalty(cg_iterations=5)"])
def test_step_does_not_depend_on_number_of_actors(algorithm):
    problem = make_problem(5, num_segments=3)
    one, two = (run(algorithm, problem, shape=SHAPES[0], count=n, max_kl=0.01, target_kl=0.01) for n in (1, 2))
    for alone, both in zip(*map(jax.tree.leaves, map(tuple, (one, two))), strict=True):
        np.testing.assert_allclose(both, alone, rtol=2e-3, atol=1e-5)


# ---- trpo_penalty


def plain_penalty(penalty: float, kl: float, target: float) -> float:
    """Doubles the penalty if the step went too far or failed, and halves it if the step was too short."""
    if kl > 1.5 * target or kl == 0:
        penalty *= 2
    elif kl < target / 1.5:
        penalty /= 2
    return min(max(penalty, 1e-4), 1e6)


@settings(deadline=None, max_examples=100)
@given(
    penalty=st.floats(2.0**-13, 1e6, width=32),
    kl=st.floats(2.0**-20, 4.0, width=32) | st.just(0.0),
    target=st.sampled_from([2.0**-10, 0.015625, 0.5]),
)
def test_penalty_update_matches_plain_python(penalty, kl, target):
    found = moved(jnp.float32(penalty), jnp.float32(kl), jnp.float32(target))
    np.testing.assert_allclose(found, plain_penalty(penalty, kl, target), rtol=1e-6)
    assert PENALTY_RANGE == (1e-4, 1e6)


@pytest.mark.parametrize(("target_kl", "rises"), [(1e-4, True), (1.0, False)])
def test_penalty_is_carried_between_steps_and_reported_as_used(target_kl, rises):
    words, problem, memory, expected = "trpo_penalty(cg_iterations=5)", make_problem(5), None, FIRST_PENALTY
    seen = []
    for seed in range(6):
        problem = problem._replace(params=problem.params)
        params, memory, info = run(words, problem, shape=SHAPES[0], memory=memory, seed=seed, target_kl=target_kl)
        np.testing.assert_allclose(info["penalty"], expected, rtol=1e-6)
        expected = plain_penalty(expected, float(info["kl"]), target_kl)
        np.testing.assert_allclose(memory.penalty, expected, rtol=1e-6)
        seen.append(float(info["kl"]))
        problem = problem._replace(params=params)
    assert expected > FIRST_PENALTY if rises else expected < FIRST_PENALTY


def test_fixed_penalty_is_kept():
    words, problem = "trpo_penalty(penalty=3.0)", make_problem(5)
    _, memory, info = run(words, problem, shape=SHAPES[0], penalty=3.0)
    assert memory.penalty == 3.0 and "penalty" not in info  # reported as a setting instead
    _, memory, other = run(words, problem, shape=SHAPES[0], memory=memory, penalty=30.0)  # changed as by a rule
    assert other["kl"] < 0.1 * info["kl"]


@pytest.mark.parametrize("penalty", [3.0, 100.0])
def test_penalty_step_is_natural_gradient_over_penalty_and_improves_penalised_objective(penalty):
    problem = make_problem(7, SHAPE)
    new, _, info = run(f"trpo_penalty(penalty=5.0, {NATURAL})", problem, penalty=penalty)
    expected = dense(problem, SHAPE, DAMPING)
    step = 0.8 ** (int(info["line_search_steps"]) - 1) * expected.direction / penalty
    np.testing.assert_allclose(as_vector(new) - expected.params, step, rtol=5e-3, atol=2e-6)
    kl = plain_kl(problem, new)
    rise = plain_surrogate(problem, new) - plain_surrogate(problem, problem.params)
    assert info["accepted"] and rise - penalty * kl > 0
    np.testing.assert_allclose(info["kl"], kl, rtol=1e-2, atol=1e-6)
    np.testing.assert_allclose(info["improvement"], rise, rtol=2e-2, atol=1e-5)
