"""Networks, and policies built from them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxtrpo.config.checks import require_bool, require_number, require_sizes
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.ops import fisher_layers as linearized
from jaxtrpo.policies.distributions import Categorical, Distribution, Gaussian

HIDDEN = (64, 64)
INITIAL_LOG_STD = -0.5
LOG_STD_REACH = 5.0  # a state-dependent std stays within a factor of exp(5) = 148 of the initial one
LAST = "last"  # name of the last layer


class MLP(nn.Module):
    """Multilayer perceptron with tanh activations; initialise it with `orthogonal_init`."""

    hidden: Sequence[int]
    outputs: int
    for_products: bool = False  # optimised for many products per linearisation (see `ops.fisher_layers`)

    @nn.compact
    def __call__(self, x: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
        """Applies the network to the last axis."""
        dot_general, tanh = (linearized.dot_general, linearized.tanh) if self.for_products else (None, nn.tanh)
        dense = functools.partial(nn.Dense, kernel_init=nn.initializers.zeros, dot_general=dot_general)
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


class _StateDependentGaussianMLP(nn.Module):
    """A network with two outputs: the mean, and the deviation of the log std from the initial one."""

    hidden: Sequence[int]
    action_size: int
    initial_log_std: float
    for_products: bool = False

    @nn.compact
    def __call__(self, obs: Float[Array, "... obs"]) -> Gaussian:
        mean, change = jnp.split(MLP(self.hidden, 2 * self.action_size, self.for_products)(obs), 2, axis=-1)
        # A smooth bound, because beyond a hard one the gradient vanishes.
        tanh = linearized.tanh if self.for_products else nn.tanh
        return Gaussian(mean, self.initial_log_std + LOG_STD_REACH * tanh(change / LOG_STD_REACH))


class _CategoricalMLP(nn.Module):
    hidden: Sequence[int]
    counts: Sequence[int]
    for_products: bool = False

    @nn.compact
    def __call__(self, obs: Float[Array, "... obs"]) -> Categorical:
        logits = MLP(self.hidden, sum(self.counts), self.for_products)(obs)
        return Categorical(tuple(jnp.split(logits, np.cumsum(self.counts)[:-1], axis=-1)))


def in_last_layer(path: tuple) -> bool:
    """Returns whether a leaf at this path of the parameters belongs to the layer `LAST`."""
    return any(getattr(part, "key", None) == LAST for part in path)


def orthogonal_init(network: nn.Module, key: PRNGKeyArray, observation_size: int, *, last_scale: float) -> PyTree:
    """Initialises with orthogonal matrices (Saxe et al. 2014), scaled by sqrt(2), or `last_scale` in the last layer.

    A single draw serves all matrices, because one per matrix, as in flax's initialisers, takes seconds to compile.
    """
    params = network.init(key, jnp.zeros(observation_size))
    kernels = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 2]
    tall = [(max(kernel.shape), min(kernel.shape)) for kernel in kernels]
    noise = jnp.split(
        jax.random.normal(key, (sum(kernel.size for kernel in kernels),)),
        np.cumsum([kernel.size for kernel in kernels])[:-1],
    )
    # Padded to a common size, so that the orthogonalisation compiles once; zeros stay zeros.
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
        return (last_scale if in_last_layer(path) else 2**0.5) * (matrix if leaf.shape == matrix.shape else matrix.T)

    return jax.tree_util.tree_map_with_path(fill, params)


def _orthogonalized(matrices: Float[Array, "matrix rows columns"]) -> Float[Array, "matrix rows columns"]:
    """Computes the nearest matrices with orthonormal columns (Newton-Schulz iteration, Higham 2008, chapter 8).

    All singular values become 1. For normal matrices, the results are uniformly distributed, like the Q of a QR
    decomposition. The iteration needs only matrix products; a decomposition would load LAPACK through SciPy, which
    takes longer than the rest of the initialisation.
    """

    def iterate(_: Array, x: Array) -> Array:
        return 1.5 * x - 0.5 * x @ (x.mT @ x)

    norm = jnp.sqrt(jnp.sum(matrices**2, axis=(1, 2), keepdims=True))
    # A singular value below 1 grows by half per iteration until it is near 1; 60 suffice for any above 1e-10.
    return jax.lax.fori_loop(0, 60, iterate, matrices / norm)


class Policy(NamedTuple):
    """A policy, which maps normalised observations to action distributions.

    Continuous actions are in policy units, where [-1, 1] is the simulator's range; discrete ones are counted from 0
    (see `distributions.to_simulator`).
    """

    init: Callable[[PRNGKeyArray], PyTree]
    apply: Callable[[PyTree, Float[Array, "... obs"]], Distribution]
    noise_size: int  # random numbers per action
    draw_noise: Callable[[PRNGKeyArray, tuple[int, ...]], Array]  # noise for its distributions
    # Equivalent of `apply`, optimised for many products per linearisation (see `ops.fisher_layers`); optional.
    apply_for_products: Callable[[PyTree, Float[Array, "state obs"]], Distribution] | None = None


def gaussian_policy(
    observation_size: int,
    action_size: int,
    *,
    hidden: Sequence[int] = HIDDEN,
    initial_log_std: float = INITIAL_LOG_STD,
    state_dependent_std: bool = False,
) -> Policy:
    """Builds a Gaussian policy for continuous actions, whose mean is a tanh network.

    Args:
      observation_size: size of an observation.
      action_size: size of an action.
      hidden: sizes of the hidden layers.
      initial_log_std: initial log standard deviation.
      state_dependent_std: the network also outputs the deviation of the log standard deviation from `initial_log_std`,
        within `LOG_STD_REACH`. Otherwise, the log standard deviation is a parameter without bounds, shared by all
        states.
    """
    kind = _StateDependentGaussianMLP if state_dependent_std else _GaussianMLP
    network = kind(tuple(hidden), action_size, initial_log_std)
    return _policy(network, observation_size, action_size, Gaussian.draw_noise)


def categorical_policy(observation_size: int, counts: Sequence[int], *, hidden: Sequence[int] = HIDDEN) -> Policy:
    """Builds a categorical policy for discrete actions with `counts` choices per coordinate, initially near uniform."""
    network = _CategoricalMLP(tuple(hidden), tuple(counts))
    return _policy(network, observation_size, len(counts), Categorical.draw_noise)


def _policy(network: nn.Module, observation_size: int, noise_size: int, draw_noise: Callable[..., Array]) -> Policy:
    for_products = network.clone(for_products=True)
    return Policy(
        init=lambda key: orthogonal_init(network, key, observation_size, last_scale=0.01),
        apply=cast(Callable[..., Distribution], network.apply),
        noise_size=noise_size,
        draw_noise=draw_noise,
        apply_for_products=cast(Callable[..., Distribution], for_products.apply),
    )


class PolicyMaker(NamedTuple):
    """Builds policies for given observation and action spaces."""

    spec_string: str  # such as "mlp(hidden=(128, 128))"
    make: Callable[[int, ActionSpace], Policy]  # (size of an observation, action space) -> policy


def mlp(
    *,
    hidden: Sequence[int] = HIDDEN,
    initial_log_std: float | int = INITIAL_LOG_STD,
    state_dependent_std: bool = False,
) -> PolicyMaker:
    """A tanh network: `gaussian_policy` for continuous actions, `categorical_policy` for discrete ones.

    Args:
      hidden: sizes of the hidden layers.
      initial_log_std: initial log standard deviation, where the simulator's range is [-1, 1]; ignored for discrete
        actions.
      state_dependent_std: the standard deviation depends on the observation.

    Returns:
      The same object for the same settings, so that compiled code is shared.

    Raises:
      ValueError: a setting is invalid. `make` raises it if `state_dependent_std` is set and actions are discrete.
    """
    require_sizes(hidden=hidden)
    require_number("between -10 and 5", lambda value: -10 <= value <= 5, initial_log_std=initial_log_std)
    require_bool(state_dependent_std=state_dependent_std)
    return _mlp(tuple(hidden), float(initial_log_std), state_dependent_std)


@functools.cache
def _mlp(hidden: tuple[int, ...], initial_log_std: float, state_dependent_std: bool) -> PolicyMaker:
    settings = {"hidden": hidden, "initial_log_std": initial_log_std, "state_dependent_std": state_dependent_std}

    def make(observation_size: int, actions: ActionSpace) -> Policy:
        if not actions.counts:
            return gaussian_policy(observation_size, actions.size, **settings)
        if state_dependent_std:
            raise ValueError(
                "state_dependent_std=True needs continuous actions, but the environment's actions are discrete"
            )
        return categorical_policy(observation_size, actions.counts, hidden=hidden)

    return PolicyMaker(spec_string_of(mlp, settings), make)
