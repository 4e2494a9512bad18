"""Counts of multiply-adds, against XLA's analysis of compiled programs, and by hand where XLA counts a loop once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jaxtrpo.ops.costs import multiply_adds, of_forward_pass

A, B = jnp.ones((6, 7)), jnp.ones((7, 5))
IMAGES, KERNEL = jnp.ones((2, 9, 8, 3)), jnp.ones((3, 3, 3, 4))


def convolution(x, kernel):
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (jnp.matmul, (A, B)),
        (jax.jit(jnp.matmul), (A, B)),
        (jax.checkpoint(jnp.matmul), (A, B)),
        (jax.vmap(jnp.matmul, in_axes=(0, None)), (jnp.ones((4, 6, 7)), B)),
        (jax.grad(lambda a, b: jnp.sum((a @ b) ** 2)), (A, B)),
        (convolution, (IMAGES, KERNEL)),
    ],
)
def test_counts_are_those_of_xla(function, arguments):
    analysis = jax.jit(function).lower(*arguments).compile().cost_analysis()
    analysis = analysis[0] if isinstance(analysis, list) else analysis
    elementwise = 3 * A.shape[0] * B.shape[1]  # squares and factors, which are no products of matrices
    assert 2 * multiply_adds(function, *arguments) == pytest.approx(analysis["flops"], abs=elementwise)


def test_loops_and_branches():
    square = jnp.ones((3, 3))
    assert multiply_adds(lambda x: jax.lax.fori_loop(0, 5, lambda _, x: x @ x, x), square) == 5 * 27  # a scan
    assert multiply_adds(lambda x: jax.lax.while_loop(lambda x: x[0, 0] < 5, lambda x: x @ x, x), square) == 27
    branches = [lambda x: x @ x, lambda x: x, lambda x: x @ x @ x]
    assert multiply_adds(lambda i, x: jax.lax.switch(i, branches, x), 1, square) == 3 * 27


def test_a_network_has_as_many_as_parameters_unless_it_is_known():
    params = {"kernel": A, "bias": jnp.ones(7)}
    assert of_forward_pass(None, params) == 49
    assert of_forward_pass(lambda params: 2.0 * params["kernel"].size, params) == 84
