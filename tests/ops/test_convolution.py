"""Convolutions and their derivatives, against the definition and against XLA's own."""

from __future__ import annotations

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrpo.ops import convolution
from jaxtrpo.ops.convolution import Places, convolve, convolve_images

CASES = [
    ((6, 6), 3, 1, True),
    ((7, 10), 3, 1, True),
    ((9, 5), 3, 1, False),
    ((36, 37), 8, 4, False),
    ((20, 21), 4, 2, False),
]


def plain(x, kernel, stride, same):
    """The definition, in float64."""
    rows, columns = kernel.shape[:2]
    if same:
        x = np.pad(x, ((0, 0), (rows // 2,) * 2, (columns // 2,) * 2, (0, 0)))
    height, width = ((size - side) // stride + 1 for size, side in zip(x.shape[1:3], (rows, columns), strict=True))
    out = np.zeros((len(x), height, width, kernel.shape[-1]))
    for i in range(height):
        for j in range(width):
            covered = x[:, i * stride : i * stride + rows, j * stride : j * stride + columns]
            out[:, i, j] = np.einsum("nabc,abcd->nd", covered, kernel)
    return out


@pytest.mark.parametrize(("size", "side", "stride", "same"), CASES)
def test_convolution_is_the_sum_over_what_the_kernel_covers(size, side, stride, same):
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(2, *size, 3)), rng.normal(size=(side, side, 3, 5))
    found = convolve(jnp.float32(x), jnp.float32(kernel), stride=stride, same=same)
    np.testing.assert_allclose(found, plain(x, kernel, stride, same), atol=1e-4)


def test_leading_axes_are_independent():
    rng = np.random.default_rng(0)
    x, kernel = jnp.float32(rng.normal(size=(2, 3, 6, 7, 2))), jnp.float32(rng.normal(size=(3, 3, 2, 4)))
    found = convolve(x, kernel, same=True)
    assert found.shape == (2, 3, 6, 7, 4)
    np.testing.assert_allclose(found[1, 2], convolve(x[1, 2], kernel, same=True), atol=1e-5)


NUMBERS = ("NHWC", "HWIO", "NHWC")
PLACES = [  # sizes of images, sides of the kernel, strides, padding
    ((9, 11), (3, 3), (1, 1), ((1, 1), (1, 1))),
    ((12, 13), (4, 4), (2, 2), ((0, 0), (0, 0))),
    ((13, 12), (3, 3), (2, 2), ((1, 1), (0, 1))),
    ((13, 12), (5, 3), (3, 2), ((2, 1), (0, 0))),
    ((10, 9), (4, 2), (2, 1), ((1, 2), (0, 0))),
    ((7, 8), (1, 1), (2, 2), ((0, 0), (0, 0))),
]


def by_xla(x, kernel, strides, padding):
    return jax.lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=NUMBERS)


def pair(size, sides, strides, padding):
    """Returns our convolution, XLA's, images and a kernel."""
    rng = np.random.default_rng(0)
    x, kernel = jnp.float32(rng.normal(size=(2, *size, 3))), jnp.float32(rng.normal(size=(*sides, 3, 5)))
    places = Places(strides, padding)
    return lambda x, k: convolve_images(x, k, places), lambda x, k: by_xla(x, k, strides, padding), x, kernel


@pytest.mark.parametrize("case", PLACES)
def test_derivatives_are_those_of_xla(case):
    ours, theirs, x, kernel = pair(*case)
    rng = np.random.default_rng(1)
    directions = jnp.float32(rng.normal(size=x.shape)), jnp.float32(rng.normal(size=kernel.shape))
    for found, wanted in zip(*(jax.jvp(f, (x, kernel), directions) for f in (ours, theirs)), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-4)
    cotangent = jnp.float32(rng.normal(size=ours(x, kernel).shape))
    for found, wanted in zip(*(jax.vjp(f, x, kernel)[1](cotangent) for f in (ours, theirs)), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize("case", PLACES[:3])
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (1, None), (None, 0)])
def test_gradients_of_several_images_or_kernels_at_once(case, axes):
    ours, theirs, x, kernel = pair(*case)
    x, kernel = jnp.stack([x, x - 1], axis=axes[0] or 0), jnp.stack([kernel, kernel + 1])
    given = (x if axes[0] is not None else x[0], kernel if axes[1] is not None else kernel[0])

    def gradients(function):
        return jax.vmap(jax.grad(lambda *each: jnp.sum(jnp.sin(function(*each))), argnums=(0, 1)), in_axes=axes)(*given)

    for found, wanted in zip(gradients(ours), gradients(theirs), strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-3)


@pytest.mark.parametrize("case", PLACES[1:3])
def test_second_derivatives(case):
    ours, theirs, x, kernel = pair(*case)
    for number in (0, 1):
        found, wanted = (
            jax.hessian(lambda *each, f=f: jnp.sum(jnp.sin(f(*each))), number)(x, kernel) for f in (ours, theirs)
        )
        np.testing.assert_allclose(found, wanted, atol=5e-3)


def equations(jaxpr):
    """Yields all equations, those of nested programs included."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from equations(inner)


def test_all_convolutions_have_the_order_of_axes_that_is_fast_inside_of_loops():
    _, _, x, kernel = pair(*PLACES[2])
    usual = jax.lax.conv_dimension_numbers(x.shape, kernel.shape, NUMBERS)

    def orders(function):
        program = jax.make_jaxpr(jax.grad(lambda *each: jnp.sum(function(*each) ** 2), argnums=(0, 1)))(x, kernel)
        return [each.params["dimension_numbers"] for each in equations(program.jaxpr) if "conv" in each.primitive.name]

    ours, theirs = (orders(function) for function in pair(*PLACES[2])[:2])
    assert ours == [usual] * 3
    assert theirs != [usual] * 3


def test_images_without_a_tangent_cost_nothing():
    ours, _, x, kernel = pair(*PLACES[2])
    program = str(jax.make_jaxpr(jax.grad(lambda kernel: jnp.sum(ours(x, kernel) ** 2)))(kernel))
    assert program.count("= conv") == 2
    np.testing.assert_array_equal(jax.jvp(lambda _: ours(x, kernel), (1.0,), (1.0,))[1], 0)


def test_on_accelerators_convolutions_are_those_of_xla(monkeypatch):
    ours, theirs, x, kernel = pair(*PLACES[2])
    monkeypatch.setattr(convolution, "on_cpu", lambda: False)
    assert str(jax.make_jaxpr(jax.grad(lambda k: jnp.sum(ours(x, k))))(kernel)) == str(
        jax.make_jaxpr(jax.grad(lambda k: jnp.sum(theirs(x, k))))(kernel)
    )


@pytest.mark.parametrize("case", PLACES)
def test_several_trainings_at_once(monkeypatch, case):
    ours, theirs, x, kernel = pair(*case)
    monkeypatch.setattr(convolution, "trainings_are_batched", lambda: True)
    np.testing.assert_allclose(ours(x, kernel), theirs(x, kernel), atol=1e-4)
    found, wanted = (jax.grad(lambda *each, f=f: jnp.sum(jnp.sin(f(*each))), 1)(x, kernel) for f in (ours, theirs))
    np.testing.assert_allclose(found, wanted, atol=2e-3)
    divides = not any(side % stride for side, stride in zip(case[1], case[2], strict=True))
    assert ("conv_general" in str(jax.make_jaxpr(ours)(x, kernel))) != divides


@pytest.mark.parametrize("dtype", ["uint8", "bool"])
@pytest.mark.parametrize("batched", [False, True])
def test_images_of_integers_are_converted_and_kept_as_they_are(monkeypatch, dtype, batched):
    _, theirs, x, kernel = pair(*PLACES[1])
    monkeypatch.setattr(convolution, "trainings_are_batched", lambda: batched)
    x = jnp.asarray((jnp.abs(x) * 50 if dtype == "uint8" else x > 0).astype(dtype))
    ours = lambda kernel: convolve(x, kernel, stride=2)  # noqa: E731
    found, pull_back = jax.vjp(ours, kernel)
    wanted, pull_back_theirs = jax.vjp(lambda kernel: theirs(x.astype(jnp.float32), kernel), kernel)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)
    scale = np.abs(pull_back_theirs(wanted)[0]).max()
    np.testing.assert_allclose(pull_back(wanted)[0] / scale, pull_back_theirs(wanted)[0] / scale, atol=1e-5)
    if not batched:
        kept = [leaf for leaf in jax.tree.leaves(pull_back) if leaf.size == x.size]
        assert [leaf.dtype for leaf in kept] == [dtype]
