"""Networks, and the policy made of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxtrpo.ops import linearized
from jaxtrpo.policies.distributions import Gaussian

LAST = "last"  # name of the last layer


class MLP(nn.Module):
    """tanh network. Initialise with `orthogonal_init`."""

    hidden: Sequence[int]
    outputs: int
    for_products: bool = False  # linearised once and multiplied with often (see `ops.linearized`)

    @nn.compact
    def __call__(self, x: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
        """Applies the network to the last axis."""
        dot_general, tanh = (linearized.dot_general, linearized.tanh) if self.for_products else (None, nn.tanh)
        dense = partial(nn.Dense, kernel_init=nn.initializers.zeros, dot_general=dot_general)
        for size in self.hidden:
            x = tanh(dense(size)(x))
        return dense(self.outputs, name=LAST)(x)


class _GaussianMLP(nn.Module):
    hidden: Sequence[int]
    action_size: int
    initial_log_std: float
    for_products: bool = False

    @nn.compact
    def __call__(self, obs: Float[Array, "... obs"]) -> Gaussian:
        mean = MLP(self.hidden, self.action_size, self.for_products)(obs)
        log_std = self.param("log_std", nn.initializers.constant(self.initial_log_std), (self.action_size,))
        return Gaussian(mean, jnp.broadcast_to(log_std, mean.shape))


def orthogonal_init(network: nn.Module, key: PRNGKeyArray, observation_size: int, *, last_scale: float) -> PyTree:
    """Parameters with orthogonal matrices (Saxe et al. 2014), scaled by sqrt(2) and, in the last layer, `last_scale`.

    One draw serves all matrices; a draw for each, as flax's own initialisers make, takes seconds to compile.
    """
    params = network.init(key, jnp.zeros(observation_size))
    kernels = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 2]
    tall = [(max(kernel.shape), min(kernel.shape)) for kernel in kernels]
    noise = jnp.split(
        jax.random.normal(key, (sum(kernel.size for kernel in kernels),)),
        np.cumsum([kernel.size for kernel in kernels])[:-1],
    )
    # Padded to one size, because orthogonalising them together compiles once; zeros stay zeros.
    size = np.max(tall, axis=0)
    padded = [
        jnp.pad(part.reshape(shape), [(0, most - n) for most, n in zip(size, shape, strict=True)])
        for part, shape in zip(noise, tall, strict=True)
    ]
    matrices = iter(zip(_orthogonalized(jnp.stack(padded)), tall, strict=True))

    def fill(path: tuple, leaf: Array) -> Array:
        if leaf.ndim != 2:
            return leaf
        matrix, (rows, columns) = next(matrices)
        matrix = matrix[:rows, :columns]
        is_last = any(getattr(part, "key", None) == LAST for part in path)
        return (last_scale if is_last else 2**0.5) * (matrix if leaf.shape == matrix.shape else matrix.T)

    return jax.tree_util.tree_map_with_path(fill, params)


def _orthogonalized(matrices: Float[Array, "matrix rows columns"]) -> Float[Array, "matrix rows columns"]:
    """The nearest with orthonormal columns: all singular values become 1 (Newton-Schulz, Higham 2008, chapter 8).

    Of normal matrices they are as uniformly distributed as the Q of a QR decomposition. It needs products only, while
    the decomposition loads LAPACK through SciPy, which takes longer than everything else here.
    """

    def iterate(_: Array, x: Array) -> Array:
        return 1.5 * x - 0.5 * x @ (x.mT @ x)

    norm = jnp.sqrt(jnp.sum(matrices**2, axis=(1, 2), keepdims=True))
    # A singular value s below 1 grows by half in an iteration until it is near 1: 60 are enough for any above 1e-10.
    return jax.lax.fori_loop(0, 60, iterate, matrices / norm)


class Policy(NamedTuple):
    """Maps normalised observations to distributions of actions, in units where [-1, 1] is the simulator's range."""

    init: Callable[[PRNGKeyArray], PyTree]
    apply: Callable[[PyTree, Float[Array, "... obs"]], Gaussian]
    # The same, made to be linearised once and multiplied with often (see `ops.linearized`); `apply` serves as well.
    apply_for_products: Callable[[PyTree, Float[Array, "state obs"]], Gaussian] | None = None


def gaussian_policy(
    observation_size: int, action_size: int, *, hidden: Sequence[int] = (64, 64), initial_log_std: float = -0.5
) -> Policy:
    """A tanh network for the mean, and a standard deviation that does not depend on the observation."""
    network = _GaussianMLP(tuple(hidden), action_size, initial_log_std)
    for_products = network.clone(for_products=True)
    return Policy(
        init=lambda key: orthogonal_init(network, key, observation_size, last_scale=0.01),
        apply=cast(Callable[..., Gaussian], network.apply),
        apply_for_products=cast(Callable[..., Gaussian], for_products.apply),
    )
