"""Matrix-free products with the Fisher information matrix."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jaxtyping import PyTree


def fisher_vector_product(
    predict: Callable[[PyTree], PyTree],
    params: PyTree,
    metric: Callable[[PyTree, PyTree], PyTree],
    *,
    reduce: Callable[[PyTree], PyTree] = lambda product: product,
) -> Callable[[PyTree], PyTree]:
    """Returns the function v -> J^T M J v, the Gauss-Newton form of the Fisher matrix.

    J is the Jacobian of the distribution's parameters with respect to `params`, M the Fisher matrix of the
    distribution in its own parameters. At `params` this equals the Hessian of KL(old || new) (Martens 2020, section
    9.2; Schulman et al. 2015, appendix C), needs no second derivatives, and is positive semi-definite regardless of
    rounding.

    Args:
      predict: params -> parameters of the distributions at a batch of states, any pytree.
      params: where to linearise; this happens once and is shared by all products.
      metric: (distribution parameters, tangent) -> M tangent. Products are summed over states, so it must include the
        weight of each state.
      reduce: sums products over devices.

    Returns:
      A function on pytrees shaped like `params`.
    """
    outputs, forward = jax.linearize(predict, params)
    backward = jax.linear_transpose(forward, params)

    def product(vector: PyTree) -> PyTree:
        (pulled_back,) = backward(metric(outputs, forward(vector)))
        return reduce(pulled_back)

    return product
