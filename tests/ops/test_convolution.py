"""Convolutions as matrix products."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrpo.ops.convolution import convolve

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


def test_derivatives_are_those_of_xla():
    rng = np.random.default_rng(0)
    x, kernel = jnp.float32(rng.normal(size=(2, 12, 12, 3))), jnp.float32(rng.normal(size=(4, 4, 3, 5)))

    def theirs(kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (2, 2), "VALID", dimension_numbers=numbers)

    ours = lambda kernel: convolve(x, kernel, stride=2)  # noqa: E731
    direction = rng.normal(size=kernel.shape).astype(np.float32)
    np.testing.assert_allclose(*(jax.jvp(f, (kernel,), (direction,))[1] for f in (ours, theirs)), atol=1e-4)
    cotangent = rng.normal(size=(2, 5, 5, 5)).astype(np.float32)
    np.testing.assert_allclose(*(jax.vjp(f, kernel)[1](cotangent)[0] for f in (ours, theirs)), atol=1e-4)
