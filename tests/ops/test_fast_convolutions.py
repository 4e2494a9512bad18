"""Convolutions in functions of others."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxtrpo.ops.fast_convolutions import with_fast_convolutions

X = np.random.default_rng(0).normal(size=(2, 9, 10, 4)).astype(np.float32)


class Network(nn.Module):
    settings: tuple = ()

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(6, (3, 3), name="first")(x))
        x = nn.relu(nn.Conv(8, (3, 3), name="second", **dict(self.settings))(x))
        return {"out": nn.Dense(3)(x.reshape(len(x), -1)), "shape": jnp.int32(x.shape[1])}


def replaced(function, *arguments):
    """Returns how many convolutions are ours; others have the derivatives of XLA."""
    return str(jax.make_jaxpr(function)(*arguments)).count("name=_with_own_derivatives")


@pytest.mark.parametrize(
    ("settings", "ours"),
    [
        ({}, 2),
        ({"strides": (2, 3), "padding": "VALID"}, 2),
        ({"padding": ((2, 0), (1, 1))}, 2),
        ({"kernel_dilation": (2, 2)}, 1),
        ({"input_dilation": (2, 2), "padding": ((1, 1), (1, 1))}, 1),
        ({"feature_group_count": 2}, 1),
        ({"dtype": jnp.bfloat16}, 1),
    ],
)
def test_results_and_gradients_stay_the_same(settings, ours):
    network = Network(tuple(settings.items()))
    params = network.init(jax.random.PRNGKey(0), X)
    changed = with_fast_convolutions(network.apply)
    assert replaced(changed, params, X) == ours
    assert not replaced(network.apply, params, X)
    found, wanted = changed(params, X), network.apply(params, X)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-2 if "dtype" in settings else 1e-5), found, wanted
    )
    gradients = [jax.grad(lambda p, f=f: jnp.sum(f(p, X)["out"] ** 2))(params) for f in (changed, network.apply)]
    scale = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradients[1]))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a / scale, b / scale, atol=2e-2 if "dtype" in settings else 1e-5),
        *gradients,
    )


def test_convolutions_inside_of_jit_and_of_other_dimensions():
    kernel = jnp.ones((3, 3, 4, 2))
    inside = jax.jit(
        lambda x: jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    )
    assert replaced(with_fast_convolutions(lambda x: inside(x) + 1), X) == 1
    np.testing.assert_allclose(with_fast_convolutions(inside)(X), inside(X), atol=1e-4)
    line = lambda x: jax.lax.conv_general_dilated(x, kernel[0], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))  # noqa: E731
    assert not replaced(with_fast_convolutions(line), X[0])
    first = lambda x: jax.lax.conv(jnp.moveaxis(x, -1, 1), jnp.ones((2, 4, 3, 3)), (1, 1), "SAME")  # noqa: E731
    assert not replaced(with_fast_convolutions(first), X)
    np.testing.assert_allclose(with_fast_convolutions(first)(X), first(X), atol=1e-4)


@jax.custom_vjp
def doubled_backwards(x):
    return jnp.sin(x)


doubled_backwards.defvjp(lambda x: (jnp.sin(x), x), lambda x, cotangent: (2 * jnp.cos(x) * cotangent,))


def test_custom_derivatives_and_loops_are_kept():
    def function(x):
        x = doubled_backwards(x)
        total = jax.lax.fori_loop(0, 3, lambda i, t: t + i * jax.nn.relu(x), jnp.zeros_like(x))
        return jnp.sum(jax.lax.cond(x.sum() > 0, jnp.sin, jax.nn.silu, total)), jax.checkpoint(jnp.tanh)(x)[0]

    changed = with_fast_convolutions(function)
    x = jnp.float32([0.5, -1.0, 2.0])
    np.testing.assert_allclose(changed(x), function(x), rtol=1e-6)
    np.testing.assert_allclose(
        jax.grad(lambda x: sum(changed(x)))(x), jax.grad(lambda x: sum(function(x)))(x), rtol=1e-6
    )


@pytest.mark.parametrize("more", [{"preferred_element_type": jnp.float32}, {}])
def test_convolutions_keep_the_type_that_was_asked_for(more):
    def convolved(x, kernel):
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"), precision="highest", **more
        )

    x, kernel = jnp.ones((1, 8, 8, 3)), jnp.ones((3, 3, 3, 4))
    found, wanted = with_fast_convolutions(convolved)(x, kernel), convolved(x, kernel)
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-3)
