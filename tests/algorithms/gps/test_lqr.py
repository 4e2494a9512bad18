"""Linear-quadratic regulation against dense solutions and sampling, in float64."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrpo.algorithms.gps import bounded_lqr, lqr
from jaxtrpo.algorithms.gps.definite import inverse
from jaxtrpo.algorithms.gps.lqr import Controller, Dynamics, Reward

best_response, outcome, bounded_response = map(jax.jit, (lqr.best_response, lqr.outcome, bounded_lqr.bounded_response))
T, X, U = 6, 3, 2
Z = X + U


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def positive(rng, *shape: int) -> np.ndarray:
    root = rng.normal(size=shape)
    return root @ np.swapaxes(root, -1, -2) + 0.5 * np.eye(shape[-1])


def problem(seed: int) -> tuple[Dynamics, Reward, Controller]:
    rng = np.random.default_rng(seed)
    dynamics = Dynamics(0.5 * rng.normal(size=(T, X, Z)), rng.normal(size=(T, X)), 0.1 * positive(rng, T, X, X))
    reward = Reward(rng.normal(size=T), rng.normal(size=(T, Z)), -positive(rng, T, Z, Z))
    reference = Controller(0.3 * rng.normal(size=(T, U, X)), rng.normal(size=(T, U)), positive(rng, T, U, U))
    return jax.tree.map(jnp.asarray, (dynamics, reward, reference))


def mean_of_actions(controller: Controller, dynamics: Dynamics) -> np.ndarray:
    x, actions = np.zeros(X), []
    for t in range(T):
        u = controller.gain[t] @ x + controller.offset[t]
        actions.append(u)
        x = dynamics.slope[t] @ np.concatenate([x, u]) + dynamics.offset[t]
    return np.concatenate(actions)


def penalised(actions, dynamics: Dynamics, reward: Reward, reference: Controller, multiplier: float, x=None, begin=0):
    """Computes the noiseless return of a sequence of actions minus the penalty for deviating from the reference."""
    x, total = jnp.zeros(X) if x is None else x, 0.0
    for i, t in enumerate(range(begin, T)):
        u = actions[U * i : U * (i + 1)]
        z = jnp.concatenate([x, u])
        change = u - reference.gain[t] @ x - reference.offset[t]
        total += reward.constant[t] + reward.gradient[t] @ z + 0.5 * z @ reward.curvature[t] @ z
        total -= 0.5 * multiplier * change @ reference.precision[t] @ change
        x = dynamics.slope[t] @ z + dynamics.offset[t]
    return total


@functools.partial(jax.jit, static_argnames="begin")
def dense_solution(dynamics: Dynamics, reward: Reward, reference: Controller, multiplier, begin: int):
    """Returns the best actions from the state 0 on, their derivative by the state, and the Hessian of the return."""

    def solved(x):
        def objective(actions):
            return penalised(actions, dynamics, reward, reference, multiplier, x, begin)

        zero = jnp.zeros(U * (T - begin))
        hessian = jax.hessian(objective)(zero)
        return -jnp.linalg.solve(hessian, jax.grad(objective)(zero)), hessian

    actions, hessian = solved(jnp.zeros(X))
    return actions, jax.jacobian(lambda x: solved(x)[0])(jnp.zeros(X)), hessian


@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 1000), multiplier=st.sampled_from([1e-3, 1.0, 100.0]))
def test_best_response_matches_dense_solution(seed, multiplier):
    """Solves one linear system over all actions; a precision is the curvature of the optimal return from there on."""
    dynamics, reward, reference = problem(seed)
    found, definite = best_response(dynamics, reward, reference, jnp.float64(multiplier))
    for t in (0, T - 1, 2):
        actions, gain, hessian = dense_solution(dynamics, reward, reference, multiplier, t)
        if t == 0:
            np.testing.assert_allclose(mean_of_actions(found, dynamics), actions, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(found.gain[t], gain[:U], rtol=1e-6, atol=1e-9)
        covariance = np.linalg.inv(-np.asarray(hessian))[:U, :U] * multiplier
        np.testing.assert_allclose(found.precision[t], np.linalg.inv(covariance), rtol=1e-7)
    assert definite


def test_outcome_matches_sampling():
    dynamics, reward, reference = problem(3)
    controller, _ = best_response(dynamics, reward, reference, jnp.float64(5.0))
    found = outcome(dynamics, reward, controller, reference)
    rng, count = np.random.default_rng(0), 400_000
    x, total, kl = np.zeros((count, X)), np.zeros(count), np.zeros(count)

    def log_prob(u, mean, precision):
        away = u - mean
        return 0.5 * (np.linalg.slogdet(precision)[1] - np.einsum("ni,ij,nj->n", away, precision, away))

    for t in range(T):
        mean = x @ controller.gain[t].T + controller.offset[t]
        u = mean + rng.normal(size=(count, U)) @ np.linalg.cholesky(np.linalg.inv(controller.precision[t])).T
        other = x @ reference.gain[t].T + reference.offset[t]
        kl += log_prob(u, mean, controller.precision[t]) - log_prob(u, other, reference.precision[t])
        z = np.concatenate([x, u], axis=1)
        total += reward.constant[t] + z @ reward.gradient[t]
        total += 0.5 * np.einsum("ni,ij,nj->n", z, reward.curvature[t], z)
        noise = rng.normal(size=(count, X)) @ np.linalg.cholesky(dynamics.covariance[t]).T
        x = z @ dynamics.slope[t].T + dynamics.offset[t] + noise
    for value, samples in ((found.kl, kl), (found.return_, total)):
        assert abs(value - samples.mean()) < 5 * samples.std() / np.sqrt(count)
    assert found.kl > 0.1


def test_kl_to_itself_is_zero():
    dynamics, reward, reference = problem(0)
    assert abs(outcome(dynamics, reward, reference, reference).kl) < 1e-10


@pytest.mark.parametrize("max_kl", [0.01, 1.0, 30.0])
def test_bound_is_met_and_controller_is_optimal_within_it(max_kl):
    dynamics, reward, reference = problem(1)
    found, info = bounded_response(dynamics, reward, reference, jnp.float64(max_kl), jnp.float64(1.0))
    assert info.found and 0.999 * max_kl < info.kl <= max_kl and info.indefinite == 0
    best = outcome(dynamics, reward, found, reference)
    rng = np.random.default_rng(0)
    for _ in range(20):
        other = jax.tree.map(lambda leaf: leaf + 0.01 * rng.normal(size=leaf.shape), found)
        other = other._replace(precision=(other.precision + other.precision.mT) / 2)
        moved = outcome(dynamics, reward, other, reference)
        # The multiplier is the price of KL: no other controller has a better penalised return.
        assert moved.return_ - info.multiplier * moved.kl <= best.return_ - info.multiplier * best.kl + 1e-9


def test_large_bound_gives_unconstrained_optimum():
    dynamics, reward, reference = problem(2)
    found, info = bounded_response(dynamics, reward, reference, jnp.float64(1e9), jnp.float64(1.0))
    free, _ = best_response(dynamics, reward, reference, jnp.float64(1e-9))
    assert info.found
    np.testing.assert_allclose(found.gain, free.gain, atol=1e-3)


def test_indefinite_trials_are_reported_and_discarded():
    """If the reward is convex in the action, there is an optimum only with a large multiplier."""
    dynamics, reward, reference = problem(4)
    convex = reward._replace(curvature=reward.curvature.at[2, X:, X:].set(50 * np.eye(U)))
    _, definite = best_response(dynamics, convex, reference, jnp.float64(1e-3))
    assert not definite
    found, info = bounded_response(dynamics, convex, reference, jnp.float64(1e9), jnp.float64(1.0))
    assert info.found and info.indefinite > 0 and np.all(np.linalg.eigvalsh(found.precision) > 0)
    undefined = reward._replace(curvature=jnp.full_like(reward.curvature, jnp.nan))
    stayed, info = bounded_response(dynamics, undefined, reference, jnp.float64(1.0), jnp.float64(1.0))
    assert not info.found and info.kl == 0 and info.predicted_gain == 0
    jax.tree.map(np.testing.assert_array_equal, stayed, reference)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000), n=st.sampled_from([1, 2, 5, 12]))
def test_inverse_matches_numpy(seed, n):
    matrix = positive(np.random.default_rng(seed), 4, n, n)
    found = inverse(jnp.asarray(matrix))
    np.testing.assert_allclose(found.matrix, np.linalg.inv(matrix), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.log_det, np.linalg.slogdet(matrix)[1], atol=1e-9)
    assert np.all(found.definite)


@pytest.mark.parametrize("unit", [2.0**-40, 2.0**40])
def test_definiteness_does_not_depend_on_scale(unit):
    matrix = positive(np.random.default_rng(3), 5, 5)
    of_one, of_other = inverse(jnp.asarray(matrix)), inverse(jnp.asarray(unit * matrix))
    assert of_one.definite and of_other.definite
    np.testing.assert_array_equal(of_other.matrix * unit, of_one.matrix)


def test_indefinite_matrix_is_reported():
    matrices = np.stack([np.diag([1.0, -1e-3]), np.array([[1.0, 2.0], [2.0, 1.0]]), np.full((2, 2), np.nan), np.eye(2)])
    found = inverse(jnp.asarray(matrices))
    np.testing.assert_array_equal(found.definite, [False, False, False, True])


def test_vmapped_response_matches_single_responses():
    problems = [problem(seed) for seed in (5, 6)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *problems)
    many, _ = jax.vmap(lambda *one: bounded_response(*one, jnp.float64(0.5), jnp.float64(1.0)))(*stacked)
    for number, one in enumerate(problems):
        alone, _ = bounded_response(*one, jnp.float64(0.5), jnp.float64(1.0))
        np.testing.assert_allclose(many.gain[number], alone.gain, rtol=1e-8, atol=1e-10)
