"""Networks, and policies built from them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from jaxtrpo.config.checks import require_sizes
from jaxtrpo.config.specs import is_built_in, parse, spec_string_of
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.envs.observation_space import Observed, flat_size
from jaxtrpo.ops import fisher_layers as linearized
from jaxtrpo.policies.distributions import Distribution, Gaussian
from jaxtrpo.policies.heads import INITIAL_LOG_STD, LAST, Head, as_float, head_for, in_last_layer, require_head
from jaxtrpo.policies.recurrence import Recurrence
from jaxtrpo.policies.value_head import SHARED, ValueHead, with_value_head

HIDDEN = (64, 64)
NO_SCALES: Mapping[str, float] = {}


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


class _MLPPolicy(nn.Module):
    hidden: Sequence[int]
    head: Head
    for_products: bool = False

    @nn.compact
    def __call__(self, obs: Float[Array, "... obs"]) -> Distribution | tuple[Distribution, Array]:
        outputs = MLP(self.hidden, self.head.outputs, self.for_products)(obs)
        return self.head.distribution(self, outputs, tanh=linearized.tanh if self.for_products else nn.tanh)


def orthogonal_init(network: nn.Module, key: PRNGKeyArray, observation_size: int, *, last_scale: float) -> PyTree:
    """Initialises with orthogonal matrices (Saxe et al. 2014), scaled by sqrt(2), or `last_scale` in the last layer.

    A single draw serves all matrices, because one per matrix, as in flax's initialisers, takes seconds to compile.
    """
    return orthogonal(network.init(key, jnp.zeros(observation_size)), key, last_scale=last_scale)


def orthogonal(
    params: PyTree, key: PRNGKeyArray, *, last_scale: float, scales: Mapping[str, float] = NO_SCALES
) -> PyTree:
    """Replaces the matrices of freshly initialised parameters; see `orthogonal_init`.

    Args:
      params: parameters; only their shapes count.
      key: PRNG key.
      last_scale: scale of the matrix in the layer `LAST`.
      scales: scales of other matrices, by the last part of their path.
    """
    kernels = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim >= 2]
    # Kernels of convolutions are matrices from what they cover to channels.
    shapes = [(kernel.size // kernel.shape[-1], kernel.shape[-1]) for kernel in kernels]
    tall = [(max(shape), min(shape)) for shape in shapes]
    noise = jnp.split(
        jax.random.normal(key, (sum(kernel.size for kernel in kernels),)),
        np.cumsum([kernel.size for kernel in kernels])[:-1],
    )
    matrices: dict[int, Iterator[Array]] = {}
    for axes in sorted({kernel.ndim for kernel in kernels}):
        group = [(shape, part) for shape, part, of in zip(tall, noise, kernels, strict=True) if of.ndim == axes]
        # Padded to a common size, so that the orthogonalisation compiles once; zeros stay zeros.
        size = np.max([shape for shape, _ in group], axis=0)
        padded = [
            jnp.pad(part.reshape(shape), [(0, most - n) for most, n in zip(size, shape, strict=True)])
            for shape, part in group
        ]
        matrices[axes] = iter(_orthogonalized(jnp.stack(padded)))
    order = iter(range(len(kernels)))

    def fill(path: tuple, leaf: Array) -> Array:
        if leaf.ndim < 2:
            return leaf
        matrix, index = next(matrices[leaf.ndim]), next(order)
        rows, columns = tall[index]
        matrix = matrix[:rows, :columns]
        scale = last_scale if in_last_layer(path) else scales.get(getattr(path[-1], "key", ""), 2**0.5)
        return scale * (matrix if shapes[index] == matrix.shape else matrix.T).reshape(leaf.shape)

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
    (see `action_units.to_simulator`).
    """

    init: Callable[[PRNGKeyArray], PyTree]
    # (parameters, observations) -> distributions; a policy with memory takes `Sequences`
    apply: Callable[[PyTree, Any], Distribution]
    noise_size: int  # random numbers per action
    draw_noise: Callable[[PRNGKeyArray, tuple[int, ...]], Array]  # noise for its distributions
    # Equivalent of `apply`, optimised for many products per linearisation (see `ops.fisher_layers`); optional.
    apply_for_products: Callable[[PyTree, Float[Array, "state obs"]], Distribution] | None = None
    recurrence: Recurrence | None = None  # None: the policy has no memory
    is_masked: bool = False  # whether its inputs say which choices are legal (see `masking`)
    value_head: ValueHead | None = None  # of a network that serves as critic, too
    # Parameters -> multiply-adds of a forward pass for one step; None: about as many as there are parameters.
    multiply_adds: Callable[[PyTree], float] | None = None

    @property
    def draws_normal_noise(self) -> bool:
        """Whether its noise is standard normal, and may be correlated over time (see `rollout.noise`)."""
        return self.draw_noise is Gaussian.draw_noise

    def step(
        self, params: PyTree, carry: PyTree, inputs: Any, first: Bool[Array, "..."]
    ) -> tuple[Distribution, PyTree]:
        """Computes distributions, and what is carried to the next step.

        Args:
          params: parameters.
          carry: what is carried from the step before; () without memory.
          inputs: see `masking.input_of`.
          first: where an episode begins; not used without memory.
        """
        if self.recurrence is None:
            return self.apply(params, inputs), carry
        return self.recurrence.step(params, carry, inputs, first)


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
      state_dependent_std: whether the standard deviation depends on the observation (see `heads.Head`).
    """
    return _mlp_policy(observation_size, hidden, Head(action_size, (), initial_log_std, state_dependent_std))


def categorical_policy(observation_size: int, counts: Sequence[int], *, hidden: Sequence[int] = HIDDEN) -> Policy:
    """Builds a categorical policy for discrete actions with `counts` choices per coordinate, initially near uniform."""
    return _mlp_policy(observation_size, hidden, Head(0, tuple(counts)))


def _mlp_policy(observation_size: int, hidden: Sequence[int], head: Head) -> Policy:
    network = _MLPPolicy(tuple(hidden), head)
    for_products = network.clone(for_products=True)
    policy = Policy(
        init=lambda key: orthogonal_init(network, key, observation_size, last_scale=0.01),
        apply=cast(Callable[..., Distribution], network.apply),
        noise_size=head.noise_size,
        draw_noise=head.draw_noise,
        apply_for_products=cast(Callable[..., Distribution], for_products.apply),
    )
    return with_value_head(policy) if head.has_value else policy


class PolicyMaker(NamedTuple):
    """Builds policies for given observation and action spaces.

    Observations are described by their size if they are flat, and by an `ObservationSpace` if they have images.
    """

    spec_string: str  # such as "mlp(hidden=(128, 128))"
    make: Callable[[Observed, ActionSpace], Policy]  # (observations, action space) -> policy
    # Spec string of the critic to use instead of `mlp`, unless another is chosen; `shared` for a policy with a value
    # head, which takes no other.
    critic: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Lets a built-in network be pickled, without its functions; one of your own cannot be."""
        if is_built_in("policy", self.spec_string):
            return parse, ("policy", self.spec_string)
        return PolicyMaker, tuple(self)


def mlp(
    *,
    hidden: Sequence[int] = HIDDEN,
    initial_log_std: float | int | None = None,
    state_dependent_std: bool = False,
    shared: bool = False,
) -> PolicyMaker:
    """A tanh network: `gaussian_policy` for continuous actions, `categorical_policy` for discrete ones.

    Args:
      hidden: sizes of the hidden layers.
      initial_log_std: initial log standard deviation, in units in which the range of an action is [-1, 1]; ignored for
        discrete actions. None: -1 for 8 to 11 coordinates, unless `state_dependent_std`, else -0.5.
      state_dependent_std: whether the standard deviation depends on the observation.
      shared: whether the network also predicts values, in place of a critic: the hidden layers serve both, and one
        optimiser minimises both losses. For `ppo`, `a2c` and `a3c`; with `dqn` it is a dueling network.

    Returns:
      The same object for the same settings, so that compiled code is shared.

    Raises:
      ValueError: a setting is invalid. `make` raises it if `state_dependent_std` is set and actions are discrete.
    """
    require_sizes(hidden=hidden)
    require_head(initial_log_std, state_dependent_std, shared)
    return _mlp(tuple(hidden), as_float(initial_log_std), state_dependent_std, shared)


@functools.cache
def _mlp(
    hidden: tuple[int, ...], initial_log_std: float | None, state_dependent_std: bool, shared: bool
) -> PolicyMaker:
    settings = {"hidden": hidden, "initial_log_std": initial_log_std, "state_dependent_std": state_dependent_std}

    def make(observed: Observed, actions: ActionSpace) -> Policy:
        size = flat_size(observed, "policy=mlp")
        return _mlp_policy(size, hidden, head_for(actions, initial_log_std, state_dependent_std, shared))

    spec_string = spec_string_of(mlp, {**settings, "shared": shared})
    return PolicyMaker(spec_string, make, critic=SHARED if shared else None)
