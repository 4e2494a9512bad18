"""From the outputs of a network to action distributions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, PyTree

from jaxtrpo.config.checks import require_bool, require_number
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.policies.distributions import Categorical, Distribution, Gaussian

LAST = "last"  # name of the last layer of a network, whose outputs a head reads
# Defaults of the log standard deviation. Independent noise in each of many coordinates adds up: with -0.5, it costs Ant
# more reward per step than staying upright earns. With 12 coordinates or more, from which on `trpo_replay` is the
# default, more noise is ahead again: it costs Humanoid next to nothing.
INITIAL_LOG_STD = -0.5
LESS_INITIAL_LOG_STD = -1.0
COORDINATES_WITH_LESS = range(8, 12)
LOG_STD_REACH = 5.0  # a state-dependent std stays within a factor of exp(5) = 148 of the initial one


class Head(NamedTuple):
    """What the outputs of a network mean: logits of discrete actions, or a Gaussian of continuous ones."""

    action_size: int  # of continuous actions
    counts: tuple[int, ...] = ()  # choices of each coordinate of discrete actions; () for continuous ones
    initial_log_std: float = INITIAL_LOG_STD
    # The network also outputs the deviation of the log standard deviation from the initial one, within `LOG_STD_REACH`.
    # Otherwise, the log standard deviation is a parameter without bounds, shared by all states.
    state_dependent_std: bool = False
    has_value: bool = False  # the network has one more output, the last, which is a value (see `value_head`)

    @property
    def outputs(self) -> int:
        """Number of outputs that the network needs."""
        of_actions = sum(self.counts) if self.counts else self.action_size * (1 + self.state_dependent_std)
        return of_actions + self.has_value

    @property
    def noise_size(self) -> int:
        """Random numbers per action."""
        return len(self.counts) if self.counts else self.action_size

    @property
    def draw_noise(self) -> Callable[..., Array]:
        """Draws the random numbers."""
        return Categorical.draw_noise if self.counts else Gaussian.draw_noise

    def distribution(
        self, module: nn.Module, outputs: Float[Array, "... outputs"], *, tanh: Callable[[Array], Array] = nn.tanh
    ) -> Distribution | tuple[Distribution, Array]:
        """Returns the distributions of the outputs of a network or, with `has_value`, distributions and values.

        Args:
          module: module that is being applied, to which the shared log standard deviation belongs.
          outputs: outputs of its network.
          tanh: function to use for tanh.
        """
        if self.has_value:
            of_actions = self._replace(has_value=False)
            return of_actions.distribution(module, outputs[..., :-1], tanh=tanh), outputs[..., -1]  # type: ignore
        if self.counts:
            return Categorical(tuple(jnp.split(outputs, np.cumsum(self.counts)[:-1], axis=-1)))
        if self.state_dependent_std:
            mean, change = jnp.split(outputs, 2, axis=-1)
            # A smooth bound, because beyond a hard one the gradient vanishes.
            return Gaussian(mean, self.initial_log_std + LOG_STD_REACH * tanh(change / LOG_STD_REACH))
        log_std = module.param("log_std", nn.initializers.constant(self.initial_log_std), (self.action_size,))
        return Gaussian(outputs, jnp.broadcast_to(log_std, outputs.shape))


def in_last_layer(path: tuple) -> bool:
    """Returns whether a leaf at this path of the parameters belongs to the layer `LAST`."""
    return any(getattr(part, "key", None) == LAST for part in path)


def require_head(initial_log_std: Any, state_dependent_std: Any, shared: Any) -> None:
    """Raises ValueError if a setting is out of range."""
    if initial_log_std is not None:
        require_number("between -10 and 5", lambda value: -10 <= value <= 5, initial_log_std=initial_log_std)
    require_bool(state_dependent_std=state_dependent_std, shared=shared)


def as_float(initial_log_std: float | int | None) -> float | None:
    """Returns the setting as one type, so that 1 and 1.0 are the same network; None is the default."""
    return None if initial_log_std is None else float(initial_log_std)


def head_for(
    actions: ActionSpace, initial_log_std: float | None, state_dependent_std: bool, shared: bool = False
) -> Head:
    """Returns the head for an action space.

    Args:
      actions: the action space.
      initial_log_std: initial log standard deviation of continuous actions; None: -1 if there are 8 to 11
        coordinates and the standard deviation is shared by all states, else -0.5.
      state_dependent_std: whether the standard deviation depends on the observation.
      shared: whether the network also predicts values.

    Raises:
      ValueError: `state_dependent_std` is set, but actions are discrete.
    """
    if actions.counts and state_dependent_std:
        raise ValueError(
            "state_dependent_std=True needs continuous actions, but the environment's actions are discrete"
        )
    size = 0 if actions.counts else actions.size
    if initial_log_std is None:
        has_less = size in COORDINATES_WITH_LESS and not state_dependent_std
        initial_log_std = LESS_INITIAL_LOG_STD if has_less else INITIAL_LOG_STD
    return Head(size, tuple(actions.counts), initial_log_std, state_dependent_std, has_value=shared)


def last_layer_scaled(params: PyTree, scale: Float[Array, ""]) -> PyTree:
    """Returns parameters with which the outputs of a network, linear in its layer `LAST`, are `scale` times as large.

    Those of a network of the user's own that has no layer of that name are returned as they are.
    """

    def scaled(path: tuple, leaf: Array) -> Array:
        return scale * leaf if in_last_layer(path) else leaf

    return jax.tree_util.tree_map_with_path(scaled, params)
