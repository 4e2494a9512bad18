"""Conjugate gradient against dense solves, JAX's own solver and optimal points of Krylov spaces found by projection."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from jaxtrpo.ops.cg import conjugate_gradient

SIZE = 6


@pytest.fixture(autouse=True)
def float64():
    """These tests are about the algorithm, not about rounding."""
    with jax.enable_x64(True):
        yield


def problem(seed: int, log_condition: float = 1.0, size: int = SIZE) -> tuple[np.ndarray, np.ndarray]:
    """Returns a random symmetric positive definite matrix with condition number 10^log_condition, and a vector."""
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(size, size)))[0]
    return (rotation * 10 ** np.linspace(0, log_condition, size)) @ rotation.T, rng.normal(size=size)


@functools.partial(jax.jit, static_argnames=("max_iterations", "tolerance"))
def solve(matrix, b, max_iterations=20 * SIZE, tolerance=1e-12):
    return conjugate_gradient(lambda v: matrix @ v, b, max_iterations=max_iterations, tolerance=tolerance)


@functools.partial(jax.jit, static_argnames="iterations")
def solve_with_jax(matrix, b, iterations):
    return jax.scipy.sparse.linalg.cg(matrix, b, tol=0.0, maxiter=iterations)[0]


problems = st.builds(problem, seed=st.integers(0, 2**31), log_condition=st.floats(0, 4))


@settings(deadline=None, max_examples=50)
@given(problems)
def test_solution_matches_dense_solver(given_problem):
    matrix, b = given_problem
    x, info = solve(matrix, b)
    np.testing.assert_allclose(x, np.linalg.solve(matrix, b), rtol=1e-7, atol=1e-7)
    assert info.residual_norm <= 1e-12 * np.linalg.norm(b)


@settings(deadline=None, max_examples=20)
@given(problems)
def test_iterates_match_jax_scipy(given_problem):
    matrix, b = given_problem
    for k in (1, 2, 3):
        x, info = solve(matrix, b, max_iterations=k, tolerance=0.0)
        np.testing.assert_allclose(x, solve_with_jax(matrix, b, k), rtol=1e-9, atol=1e-12)
        assert info.iterations == k


@settings(deadline=None, max_examples=20)
@given(problems)
def test_early_stop_returns_best_point_of_krylov_space(given_problem):
    matrix, b = given_problem
    for k in (1, 2, 3):
        krylov = np.stack([np.linalg.matrix_power(matrix, i) @ b for i in range(k)], axis=1)
        basis = np.linalg.qr(krylov)[0]
        best = basis @ np.linalg.solve(basis.T @ matrix @ basis, basis.T @ b)
        x, _ = solve(matrix, b, max_iterations=k, tolerance=0.0)
        np.testing.assert_allclose(x, best, rtol=1e-6, atol=1e-9)


@settings(deadline=None, max_examples=20)
@given(problems)
def test_error_in_matrix_norm_falls_with_every_iteration(given_problem):
    matrix, b = given_problem
    exact = np.linalg.solve(matrix, b)
    points = [np.zeros(SIZE)] + [solve(matrix, b, max_iterations=k, tolerance=0.0)[0] for k in range(1, SIZE + 1)]
    errors = np.array([np.sqrt((x - exact) @ matrix @ (x - exact)) for x in map(np.asarray, points)])
    assert np.all(np.diff(errors) <= 1e-9)
    assert errors[1] < errors[0]


@settings(deadline=None, max_examples=20)
@given(problems)
def test_reported_residual_is_that_of_returned_point(given_problem):
    matrix, b = given_problem
    for k in (1, 2, 3):
        x, info = solve(matrix, b, max_iterations=k, tolerance=0.0)
        np.testing.assert_allclose(
            info.residual_norm, np.linalg.norm(b - matrix @ np.asarray(x)), rtol=1e-8, atol=1e-12
        )


@settings(deadline=None, max_examples=20)
@given(problems)
def test_reported_curvature_is_that_of_returned_point(given_problem):
    matrix, b = given_problem
    for k in (0, 1, 2, 3, 20):
        x, info = solve(matrix, b, max_iterations=k)
        np.testing.assert_allclose(info.curvature, np.asarray(x) @ matrix @ np.asarray(x), rtol=1e-8)


@pytest.mark.parametrize("iterations", [0, 1, 3])
def test_known_product_counts_as_first_iteration(iterations):
    matrix, b = problem(4, 2.0)
    for right in (0 * b, b):
        expected = solve(matrix, right, max_iterations=iterations)
        got = conjugate_gradient(
            lambda v: matrix @ v, right, max_iterations=iterations, tolerance=1e-12, product_with_b=matrix @ right
        )
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-15), got, expected)
    only_known, _ = conjugate_gradient(lambda v: v * np.nan, b, max_iterations=1, product_with_b=matrix @ b)
    np.testing.assert_allclose(only_known, solve(matrix, b, max_iterations=1)[0], rtol=1e-9)


@settings(deadline=None, max_examples=30)
@given(problems, st.integers(0, 100))
def test_solve_can_start_from_given_point(given_problem, seed):
    """Starting at x0 is the same as solving for the residual of x0; a solve that starts at the solution stays there."""
    matrix, b = given_problem
    begin = jnp.asarray(np.random.default_rng(seed).normal(size=SIZE))

    def solve_from(start, iterations):
        return conjugate_gradient(lambda v: matrix @ v, b, max_iterations=iterations, tolerance=1e-12, start=start)

    x, info = solve_from(begin, 2)
    rest, _ = solve(matrix, b - matrix @ begin, max_iterations=2, tolerance=1e-12)
    np.testing.assert_allclose(x, begin + rest, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(info.residual_norm, np.linalg.norm(b - matrix @ np.asarray(x)), rtol=1e-6, atol=1e-10)
    np.testing.assert_allclose(info.curvature, np.asarray(x) @ matrix @ np.asarray(x), rtol=1e-8, atol=1e-10)
    there, info = solve_from(jnp.asarray(np.linalg.solve(matrix, b)), 2)
    assert info.iterations <= 1
    np.testing.assert_allclose(matrix @ np.asarray(there), b, rtol=1e-6, atol=1e-8)


def test_takes_one_iteration_per_distinct_eigenvalue():
    for eigenvalues in ([2.0] * 6, [1.0, 1.0, 5.0, 5.0, 5.0, 5.0], [1.0, 2.0, 2.0, 7.0, 7.0, 7.0]):
        x, info = solve(np.diag(eigenvalues), np.ones(SIZE))
        np.testing.assert_allclose(x, 1 / np.array(eigenvalues), rtol=1e-10)
        assert info.iterations == len(set(eigenvalues))


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_stops_when_residual_is_small_relative_to_right_hand_side(scale):
    matrix, b = problem(3, 2.0)
    b = scale * b
    for tolerance in (0.3, 1e-4):
        _, info = solve(matrix, b, tolerance=tolerance)
        assert info.residual_norm <= tolerance * np.linalg.norm(b)
        _, one_less = solve(matrix, b, max_iterations=int(info.iterations) - 1, tolerance=tolerance)
        assert one_less.residual_norm > tolerance * np.linalg.norm(b)


def test_zero_right_hand_side_takes_no_iteration():
    x, info = solve(np.eye(SIZE), np.zeros(SIZE))
    assert info.iterations == 0
    assert info.residual_norm == 0
    np.testing.assert_array_equal(x, np.zeros(SIZE))


def test_direction_of_negative_curvature_is_not_used():
    down = np.diag([1.0, 1, 1, 1, 1, -1])
    x, info = solve(down, np.eye(SIZE)[5])
    np.testing.assert_array_equal(x, np.zeros(SIZE))
    assert info.residual_norm == 1

    # Here only the second direction has negative curvature: the solve ends after the first.
    b = np.array([1.0, 0, 0, 0, 0, 0.5])
    before, _ = solve(down, b, max_iterations=1)
    after, info = solve(down, b)
    np.testing.assert_array_equal(after, before)
    np.testing.assert_allclose(info.residual_norm, np.linalg.norm(b - down @ np.asarray(after)), rtol=1e-12)


@pytest.mark.parametrize("product", [np.nan, -np.inf, 0.0, -1.0])
def test_product_without_positive_finite_curvature_gives_no_step(product):
    x, info = conjugate_gradient(lambda v: product * v, jnp.ones(SIZE), max_iterations=5)
    np.testing.assert_array_equal(x, np.zeros(SIZE))
    assert info.iterations == 1 and info.curvature == 0
    np.testing.assert_allclose(info.residual_norm, np.sqrt(SIZE), rtol=1e-6)  # nothing was solved


def test_infinite_curvature_later_on_gives_the_best_point_so_far():
    matrix, b = np.diag(np.float32([1, 2, 3])), np.float32([1, 2, 3])
    one, before = solve(matrix, b, max_iterations=1)

    def breaks(v):  # in the second direction
        return jnp.where(jnp.abs(v @ b) < 12, jnp.inf, 1.0) * (matrix @ v)

    x, info = conjugate_gradient(breaks, jnp.asarray(b), max_iterations=3)
    np.testing.assert_allclose(x, one, rtol=1e-6)
    assert info.iterations == 2
    np.testing.assert_allclose(
        [info.residual_norm, info.curvature], [before.residual_norm, before.curvature], rtol=1e-5
    )


def test_right_hand_side_of_nan_gives_no_step():
    x, info = solve(np.eye(SIZE), np.full(SIZE, np.nan))
    np.testing.assert_array_equal(x, np.zeros(SIZE))
    assert info.iterations == 0
    assert np.isnan(info.residual_norm)


def test_pytree_is_solved_like_its_flat_vector():
    matrix, b = problem(1, 2.0)
    as_tree = {"w": jnp.asarray(b[:4]).reshape(2, 2), "b": (jnp.asarray(b[4]), jnp.asarray(b[5:]))}
    flat, unravel = ravel_pytree(as_tree)
    by_tree, info = conjugate_gradient(
        lambda v: unravel(matrix @ ravel_pytree(v)[0]), as_tree, max_iterations=3, tolerance=0.0
    )
    x, flat_info = solve(matrix, flat, max_iterations=3, tolerance=0.0)
    np.testing.assert_allclose(ravel_pytree(by_tree)[0], x, rtol=1e-12)
    np.testing.assert_allclose(info.residual_norm, flat_info.residual_norm, rtol=1e-10)


def test_vmapped_solves_match_single_solves():
    """The problems take different numbers of iterations, and one that has finished must not change any more."""
    matrices = np.stack([np.eye(SIZE), problem(2, 1.0)[0], problem(5, 3.0)[0]])
    b = np.stack([np.ones(SIZE), problem(2)[1], np.zeros(SIZE)])
    together, info = jax.vmap(solve)(matrices, b)
    for i in range(3):
        alone, alone_info = solve(matrices[i], b[i])
        np.testing.assert_allclose(together[i], alone, rtol=1e-10, atol=1e-14)
        assert info.iterations[i] == alone_info.iterations
