"""How much arithmetic a function is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import optax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jaxtyping import PyTree


def multiply_adds(function: Callable[..., Any], *arguments: Any) -> float:
    """Returns the number of multiply-adds in the matrix products and convolutions of one call.

    The steps of a scan are counted, and so are all branches of a condition; other loops count once.

    Args:
      function: a function that JAX can trace.
      *arguments: its arguments, of which only shapes and dtypes count.
    """
    return _of_jaxpr(jax.make_jaxpr(function)(*arguments).jaxpr)


def of_forward_pass(known: Callable[[PyTree], float] | None, params: PyTree) -> float:
    """Returns the multiply-adds of a network for one step; by default, as many as there are parameters.

    Args:
      known: parameters -> multiply-adds, if there are many more of them, as in convolutions.
      params: parameters, of which only shapes count.
    """
    return float(optax.tree.size(params)) if known is None else known(params)


def _of_jaxpr(jaxpr: Jaxpr) -> float:
    return float(sum(_of_equation(equation) for equation in jaxpr.eqns))


def _of_equation(equation: JaxprEqn) -> float:
    name, settings = equation.primitive.name, equation.params
    if name in ("dot_general", "conv_general_dilated"):
        variables: list[Any] = [*equation.invars, *equation.outvars]
        left, right, found = (variable.aval.shape for variable in variables)
        if name == "dot_general":
            (contracted, _), _ = settings["dimension_numbers"]
            return float(math.prod(found) * math.prod(left[axis] for axis in contracted))
        return math.prod(found) * math.prod(right) / right[settings["dimension_numbers"].rhs_spec[0]]
    times = settings["length"] if name == "scan" else 1
    return float(times * sum(_of_jaxpr(inner) for value in settings.values() for inner in _jaxprs(value)))


def _jaxprs(value: Any) -> Iterator[Jaxpr]:
    """Yields the programs in a parameter of an operation."""
    if isinstance(value, ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, Jaxpr):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _jaxprs(each)
