"""Networks, and the policy made of one."""

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
from jaxtrpo.config.specs import call_in_words
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.ops import fisher_layers as linearized
from jaxtrpo.policies.distributions import Categorical, Distribution, Gaussian

HIDDEN = (64, 64)
INITIAL_LOG_STD = -0.5
LOG_STD_REACH = 5.0  # a std that depends on the state stays within a factor of exp(5) = 148 of the initial one
LAST = "last"  # name of the last layer


class MLP(nn.Module):
    """tanh network. Initialise with `orthogonal_init`."""

    hidden: Sequence[int]
    outputs: int
    for_products: bool = False  # linearised once and multiplied with often (see `ops.fisher_layers`)

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
    """One network with two heads: the mean, and how far the log std is from the initial one."""

    hidden: Sequence[int]
    action_size: int
    initial_log_std: float
    for_products: bool = False

    @nn.compact
    def __call__(self, obs: Float[Array, "... obs"]) -> Gaussian:
        mean, change = jnp.split(MLP(self.hidden, 2 * self.action_size, self.for_products)(obs), 2, axis=-1)
        # A smooth bound: beyond a hard one there is no gradient that leads back.
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
    """Whether a leaf at this path of the parameters belongs to a layer of the name `LAST`."""
    return any(getattr(part, "key", None) == LAST for part in path)


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
        return (last_scale if in_last_layer(path) else 2**0.5) * (matrix if leaf.shape == matrix.shape else matrix.T)

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
    """Maps normalised observations to distributions of actions.

    Real-valued actions are in units where [-1, 1] is the simulator's range, choices are numbers from 0 (see
    `distributions.to_simulator`).
    """

    init: Callable[[PRNGKeyArray], PyTree]
    apply: Callable[[PyTree, Float[Array, "... obs"]], Distribution]
    noise_size: int  # numbers of noise that an action needs
    draw_noise: Callable[[PRNGKeyArray, tuple[int, ...]], Array]  # of its distributions
    # `apply` made to be linearised once and multiplied with often (see `ops.fisher_layers`); `apply` serves as well.
    apply_for_products: Callable[[PyTree, Float[Array, "state obs"]], Distribution] | None = None


def gaussian_policy(
    observation_size: int,
    action_size: int,
    *,
    hidden: Sequence[int] = HIDDEN,
    initial_log_std: float = INITIAL_LOG_STD,
    state_dependent_std: bool = False,
) -> Policy:
    """A tanh network for the mean of real-valued actions.

    Args:
      observation_size: numbers in an observation.
      action_size: numbers in an action.
      hidden: sizes of the hidden layers.
      initial_log_std: log standard deviation of the first actions.
      state_dependent_std: the network also says how far the log standard deviation is from `initial_log_std`, within
        `LOG_STD_REACH`. Otherwise it is a parameter, the same in all states, without bounds.
    """
    kind = _StateDependentGaussianMLP if state_dependent_std else _GaussianMLP
    network = kind(tuple(hidden), action_size, initial_log_std)
    return _policy(network, observation_size, action_size, Gaussian.draw_noise)


def categorical_policy(observation_size: int, counts: Sequence[int], *, hidden: Sequence[int] = HIDDEN) -> Policy:
    """A tanh network for the logits of choices, one coordinate an entry of `counts`, nearly even at first."""
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
    """A policy whose environment is not known yet."""

    words: str  # as the shell and files have it
    make: Callable[[int, ActionSpace], Policy]  # (numbers in an observation, actions) -> policy


def mlp(
    *,
    hidden: Sequence[int] = HIDDEN,
    initial_log_std: float | int = INITIAL_LOG_STD,
    state_dependent_std: bool = False,
) -> PolicyMaker:
    """A tanh network: `gaussian_policy` or `categorical_policy`, as the environment's actions are.

    Args:
      hidden: sizes of the hidden layers.
      initial_log_std: log standard deviation of the first actions, where the simulator's range is [-1, 1]; nothing
        to environments whose actions are choices.
      state_dependent_std: the standard deviation depends on the observation.

    Returns:
      The same object for the same settings, so that what is compiled for one serves the other.

    Raises:
      ValueError: one sentence that names the setting. `make` raises it where `state_dependent_std` meets choices.
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
            raise ValueError("state_dependent_std=True is for actions that are real numbers, and these are choices")
        return categorical_policy(observation_size, actions.counts, hidden=hidden)

    return PolicyMaker(call_in_words(mlp, settings), make)
