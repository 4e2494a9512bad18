"""Functions of others, in which convolutions of images get derivatives that are fast on CPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from jaxtrpo.ops.convolution import AXES, Places, convolve_images
from jaxtrpo.parallel.collectives import on_cpu

ONES = (1, 1)


def with_fast_convolutions(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the same function, in which convolutions of `jax.lax` are those of `jaxtrpo.ops.convolution`.

    Networks of flax make them. Changed are convolutions of images with the channels last, flax's order of axes, without
    dilation and groups; all else stays as it is.

    Args:
      function: a function of arrays, or trees of them, that JAX can trace.
    """

    def changed(*arguments: Any) -> Any:
        program, result = jax.make_jaxpr(function, return_shape=True)(*arguments)
        return jax.tree.unflatten(jax.tree.structure(result), _run(program, jax.tree.leaves(arguments)))

    return changed


def _run(program: ClosedJaxpr, arguments: Sequence[Any]) -> list[Any]:
    """Runs a program one equation after another; see "Writing custom Jaxpr interpreters in JAX"."""
    jaxpr: Jaxpr = program.jaxpr
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*program.consts, *arguments], strict=True))

    def value(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else known[variable]

    for equation in jaxpr.eqns:
        found = _result(equation, [value(each) for each in equation.invars])
        known.update(zip(equation.outvars, found, strict=True))
    return [value(each) for each in jaxpr.outvars]


def _result(equation: JaxprEqn, arguments: list[Any]) -> Sequence[Any]:
    primitive, settings = equation.primitive, equation.params
    if primitive.name == "conv_general_dilated" and _is_of_images(settings, *arguments):
        x, kernel = map(jnp.asarray, arguments)  # constants may be arrays of NumPy
        return [convolve_images(x, kernel, Places(settings["window_strides"], settings["padding"]))]
    if primitive.name in ("jit", "pjit"):
        return _run(settings["jaxpr"], arguments)
    found = primitive.bind(*arguments, **primitive.get_bind_params(settings))
    return found if primitive.multiple_results else [found]


def _is_of_images(settings: dict[str, Any], x: Any, kernel: Any) -> bool:
    return (
        x.ndim == kernel.ndim == 4
        and x.dtype == kernel.dtype == jnp.float32
        and settings["dimension_numbers"] == jax.lax.conv_dimension_numbers(x.shape, kernel.shape, AXES)
        and tuple(settings["lhs_dilation"]) == tuple(settings["rhs_dilation"]) == ONES
        and settings["feature_group_count"] == settings["batch_group_count"] == 1
        and min(min(pair) for pair in settings["padding"]) >= 0
        and settings["preferred_element_type"] in (None, jnp.float32)
        and (settings["precision"] is None or on_cpu())
    )
