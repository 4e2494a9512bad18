"""Several natural directions combined into one step: solutions, weights and non-finite values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from support import actors, first, spread
from test_policy_step import ALL, SHAPES, Problem, arguments, dense, make_problem

from jaxtrpo.algorithms.surrogates import importance_weighted_advantage
from jaxtrpo.algorithms.trpo_replay.combined_step import DirectionMemory, combined_direction, no_directions
from jaxtrpo.algorithms.trpo_replay.weighting import STEPS, standard_error, weights
from jaxtrpo.policies.networks import gaussian_policy

SHAPE, DAMPING = SHAPES[0], 0.003
AHEAD = 1e-3  # step along a direction by which slopes are measured
FEW = 3  # iterations, far too few to solve for a direction from zero


def mapped(second):
    """Returns the step along the directions of the batch and of a second surrogate."""
    policy = gaussian_policy(*SHAPE[:2], hidden=SHAPE[2])

    def one(params, memory, action, found, key):
        natural, memory, info = combined_direction(
            policy,
            params,
            memory,
            action,
            found,
            key,
            surrogates=(importance_weighted_advantage, second),
            fisher_samples=ALL,
            cg_iterations=FEW,
            cg_damping=(0.03, DAMPING),
        )
        ahead = natural.evaluate(natural.params + AHEAD * natural.direction).objective
        rises = (ahead - natural.objective) / AHEAD
        return natural._replace(evaluate=()), memory, {**info, "rises": rises}

    return actors(1).map(one)


def empty_memory(problem: Problem) -> DirectionMemory:
    return no_directions(2, ravel_pytree(problem.params)[0].size)


def memory_after(
    problem: Problem, memory: DirectionMemory | None = None, *, times: int = 1, scale: float = 1.0
) -> DirectionMemory:
    """Returns the memory after the same batch `times` times; the second surrogate is `scale` times the first."""
    params, _, action, found, _, key = arguments(problem, 1.0)
    step = mapped(lambda new, old: scale * importance_weighted_advantage(new, old))
    now = spread(empty_memory(problem) if memory is None else memory, 1)
    for _ in range(times):
        now = step(params, now, action, found, key)[1]
    return first(now)


def test_curvature_is_that_of_weighted_unit_directions():
    """Compares with a dense float64 Fisher matrix. Fails if the inner product of the directions is left out."""
    problem = make_problem(3, SHAPE)
    params, _, action, found, _, key = arguments(problem, 1.0)
    nothing = spread(empty_memory(problem), 1)
    natural, memory, info = map(first, mapped(where_seen)(params, nothing, action, found, key))
    fisher = dense(problem, SHAPE, DAMPING).fisher
    units = STEPS * np.float64(memory.judge.directions)
    inner = units @ fisher @ units.T
    np.testing.assert_allclose(np.diagonal(inner), 1, rtol=1e-3)
    assert 0.1 < inner[0, 1] < 0.9
    assert info["critic_weight"] == 0.5
    np.testing.assert_allclose(natural.direction, np.mean(units, axis=0), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(natural.curvature, np.mean(inner), rtol=1e-3)


def test_line_search_sees_an_objective_without_the_units_of_the_surrogates():
    """Each surrogate counts in units of the length of its direction, like the direction that is followed."""
    problem = make_problem(3, SHAPE)
    params, _, action, found, _, key = arguments(problem, 1.0)
    nothing = spread(empty_memory(problem), 1)
    rises = []
    for scale in (1.0, 100.0):
        step = mapped(lambda new, old, scale=scale: scale * where_seen(new, old))
        rises.append(float(first(step(params, nothing, action, found, key)[2])["rises"]))
    assert rises[0] > 0.01
    np.testing.assert_allclose(rises[1], rises[0], rtol=0.02)


def where_seen(new, old):
    """The default surrogate, restricted to some steps."""
    return (old.obs[:, 0] > 0) * importance_weighted_advantage(new, old)


def test_batch_gradient_updates_slopes_and_weights_follow():
    """After 39 batches, both slopes are known, the second one more precisely."""
    problem = make_problem(3, SHAPE)
    params, _, action, found, _, key = arguments(problem, 1.0)
    before = np.float32(np.random.default_rng(0).normal(size=(2, ravel_pytree(problem.params)[0].size)))
    evidence = empty_memory(problem).judge._replace(
        directions=before,
        slope=np.float32([0.36, 0.3]),
        square=np.float32([0.6, 0.2]),
        weight_square=np.float32(1 / 39),
        batches=np.int32(40),
    )
    memory = empty_memory(problem)._replace(judge=evidence)
    natural, memory, info = map(first, mapped(where_seen)(params, spread(memory, 1), action, found, key))
    measured = before @ dense(problem, SHAPE, DAMPING).gradient
    after = memory.judge
    np.testing.assert_allclose(after.slope, evidence.slope + (measured - evidence.slope) / 40, rtol=1e-4)
    error = standard_error(after)
    assert error[0] > 1.5 * error[1] > 0
    reported = [info[name] for name in ("score_gain", "critic_gain", "score_gain_error", "critic_gain_error")]
    np.testing.assert_allclose(reported, [*after.slope, *error], rtol=1e-5)
    units = STEPS * (np.float64(after.directions) - (1 - 1 / STEPS) * before)
    gram = units @ dense(problem, SHAPE, DAMPING).fisher @ units.T
    shares = np.asarray(weights(after, jnp.float32(gram)))
    np.testing.assert_allclose(info["critic_weight"], shares[1], rtol=1e-3)
    assert 0.1 < shares[0] < 0.9
    # The gain that is predicted is that of the batch, not what the critic believes of itself.
    np.testing.assert_allclose(natural.gradient, dense(problem, SHAPE, DAMPING).gradient, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(natural.direction, shares @ units, rtol=1e-2, atol=1e-4)
    np.testing.assert_allclose(natural.curvature, shares @ gram @ shares, rtol=1e-3)


def test_second_direction_converges_over_batches():
    problem = make_problem(3, SHAPE)
    wanted = dense(problem, SHAPE, DAMPING).direction
    missed = [
        np.linalg.norm(memory_after(problem, times=n).solutions[0] - wanted) / np.linalg.norm(wanted)
        for n in (1, 40, 200)
    ]
    assert missed[0] > 0.5 and missed[1] < 0.15 and missed[2] < 0.05


def test_non_finite_solution_is_reset():
    """Covers a solution that became NaN and a start that is NaN."""
    problem = make_problem(3, SHAPE)
    nothing = empty_memory(problem)
    of_nan = memory_after(problem, scale=np.nan)
    from_nan = memory_after(problem, nothing._replace(solutions=np.full_like(nothing.solutions, np.nan)))
    for broken in (of_nan, from_nan):
        np.testing.assert_array_equal(broken.solutions, np.zeros_like(broken.solutions))
    again = memory_after(problem, of_nan)
    np.testing.assert_allclose(again.solutions, memory_after(problem).solutions, rtol=1e-5)
    assert jax.tree.all(jax.tree.map(lambda leaf: bool(jnp.isfinite(leaf).all()), again))
