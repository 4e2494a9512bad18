"""Gradient steps that actors share, against one Optax optimiser that sees everything."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import actors, spread

from jaxtrpo.ops.descent import clip_by_norm, descent
from jaxtrpo.ops.minibatches import Parts

RATE, STEPS = 0.7, 5


class Rows(NamedTuple):
    """Rows of a linear regression."""

    x: np.ndarray  # [row, parameter]
    y: np.ndarray  # [row]
    weight: np.ndarray  # [row]


def problem(size: int) -> tuple[Rows, np.ndarray]:
    """Returns a minibatch for each step, and the first parameters."""
    rng = np.random.default_rng(size)
    x, y = rng.normal(size=(STEPS, 12, size)), 3 * rng.normal(size=(STEPS, 12))
    rows = Rows(x, y, rng.random((STEPS, 12)))
    return jax.tree.map(np.float32, rows), np.float32(rng.normal(size=size))


def loss(params, rows):
    return jnp.sum(rows.weight * (rows.x @ params - rows.y) ** 2)


def clipped(max_norm, total):
    return optax.chain(clip_by_norm(max_norm, total), optax.adam(0.1))


def begun(optimizer, params):
    """Returns the state of an optimiser that has made seven steps before."""
    rng = np.random.default_rng(7)
    first, (adam, *rest) = optimizer.init(params)
    mu, nu = rng.normal(size=params.size), rng.uniform(1, 2, params.size)
    return first, (adam._replace(count=jnp.int32(7), mu=jnp.float32(mu), nu=jnp.float32(nu)), *rest)


def alone(max_norm: float, size: int) -> tuple:
    """Returns parameters and Adam's state after the steps of one optimiser, on all rows."""
    rows, params = problem(size)
    optimizer = optax.chain(optax.clip_by_global_norm(max_norm), optax.adam(0.1))
    params, state = jnp.asarray(params), begun(optimizer, params)
    for number in range(STEPS):
        gradient = jax.grad(loss)(params, Rows(*(leaf[number] for leaf in rows)))
        updates, state = optimizer.update(gradient, state, params)
        params = params + RATE * updates
    return jax.device_get((params, state))


def together(count: int, parts: Parts, max_norm: float, size: int) -> list[tuple]:
    """Returns what each actor has after the same steps, taken in two loops with an end and a start between them."""

    def of_actor(params, rows):
        steps = descent(functools.partial(clipped, max_norm), parts, size)

        def one(number, point):
            return steps.step(point, loss, jax.tree.map(lambda leaf: leaf[number], rows), RATE)

        state = begun(clipped(max_norm, lambda value: value), params)
        point = jax.lax.fori_loop(0, 2, one, steps.start(params, state))
        point = jax.lax.fori_loop(2, STEPS, one, steps.start(*steps.end(point)))
        return steps.end(point), steps.params(point)

    rows, params = problem(size)
    found = jax.device_get(actors(count).map(of_actor)(spread(params, count), spread(rows, count)))
    return [jax.tree.map(lambda leaf, actor=actor: leaf[actor], found) for actor in range(count)]


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
@pytest.mark.parametrize("size", [1, 4, 5])
@pytest.mark.parametrize(("count", "parts"), [(1, Parts(2)), (2, Parts(1, True)), (2, Parts(3, True)), (2, Parts(1))])
def test_steps_are_those_of_one_optimizer(count, parts, size, max_norm):
    """With gradients above the norm and below it, and sizes that actors cannot divide."""
    wanted = alone(max_norm, size)
    for ended, params in together(count, parts, max_norm, size):
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6), ended, wanted)
        assert jax.tree.structure(ended) == jax.tree.structure(wanted)
        np.testing.assert_array_equal(params, ended[0])


def test_each_actor_takes_its_share_of_the_steps():
    """Adam's square roots, one per parameter and step, are taken of half of the parameters."""
    size = 1_001

    def of_actor(params, rows):
        steps = descent(functools.partial(clipped, 1.0), Parts(1, shared=True), size)
        return steps.step(steps.start(params, clipped(1.0, jnp.asarray).init(params)), loss, rows, RATE)[0]

    rows, params = problem(size)
    one = jax.tree.map(lambda leaf: leaf[0], rows)
    program = str(jax.make_jaxpr(actors(2).map(of_actor))(spread(params, 2), spread(one, 2)))
    assert "f32[501] = sqrt" in program and "f32[1001] = sqrt" not in program and "f32[1002] = sqrt" not in program


@pytest.mark.parametrize("max_norm", [0.1, 0.5, 5.0, 20.0])
def test_clipping_is_that_of_optax_to_the_bit(max_norm):
    gradient = jnp.float32([3.0, -4.0, 0.1, 0.0])  # a norm of 5.001
    ours, theirs = clip_by_norm(max_norm, lambda value: value), optax.clip_by_global_norm(max_norm)
    assert jax.tree.structure(ours.init(gradient)) == jax.tree.structure(theirs.init(gradient))
    (found, _), (wanted, _) = (each.update(gradient, each.init(gradient)) for each in (ours, theirs))
    np.testing.assert_array_equal(found, wanted)
