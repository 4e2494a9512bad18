"""A critic of actions: how much better an action is than what the policy would do, learned from many batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from jaxtrpo.actors import Work
from jaxtrpo.ops.minibatches import over_drawn_minibatches


class Labelled(NamedTuple):
    """Steps and what they were worth; leading axes stretch, time."""

    obs: Float[Array, "stretch time obs"]  # normalised
    action: Float[Array, "stretch time feature"]  # encoded
    advantage: Float[Array, "stretch time"]  # in units of what it shall learn
    weight: Float[Array, "stretch time"]  # 1 for a step that counts, 0 for one that does not


class ActionCriticState(NamedTuple):
    """What is learned; the parameters are one vector, so that Adam is one operation, not one a leaf."""

    params: Float[Array, " parameter"]
    optimizer: optax.OptState


class ActionCritic(NamedTuple):
    """Predicts advantages. Pure functions; what is learned is in the state."""

    init: Callable[[PRNGKeyArray], ActionCriticState]
    # (state, normalised observations, encoded actions) -> advantages
    advantage: Callable[[ActionCriticState, Float[Array, "... obs"], Float[Array, "... feature"]], Float[Array, "..."]]
    # (state, (key, number) -> labelled stretches, gradient steps, key) -> (state, see `fit`)
    fit: Callable[
        [ActionCriticState, Callable[[UInt32[Array, "2"], int], Labelled], Int[Array, ""], PRNGKeyArray],
        tuple[ActionCriticState, Float[Array, ""]],
    ]
    work: Callable[[float], Work]  # gradient steps -> of a fit


class _Network(nn.Module):
    """Layer norm keeps what it says beyond the actions that were taken from growing without bounds."""

    hidden: Sequence[int]

    @nn.compact
    def __call__(self, x: Float[Array, "... inputs"]) -> Float[Array, "..."]:
        for size in self.hidden:
            x = nn.relu(nn.LayerNorm()(nn.Dense(size)(x)))
        return nn.Dense(1)(x)[..., 0]


def action_critic(
    observation_size: int,
    action_features: int,
    *,
    hidden: Sequence[int],
    learning_rate: float,
    stretches: int,
    stretch_length: int,
) -> ActionCritic:
    """A network with layer norm, fitted with Adam on minibatches of labelled stretches.

    Args:
      observation_size: numbers in an observation.
      action_features: numbers in an encoded action.
      hidden: sizes of the hidden layers.
      learning_rate: of Adam.
      stretches: in one minibatch.
      stretch_length: steps of a stretch.
    """
    network = _Network(tuple(hidden))
    optimizer = optax.adam(learning_rate)
    inputs = jax.ShapeDtypeStruct((observation_size + action_features,), jnp.float32)
    shapes = jax.eval_shape(network.init, jax.random.PRNGKey(0), inputs)
    first, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))

    def init(key: PRNGKeyArray) -> ActionCriticState:
        params, _ = ravel_pytree(network.init(key, jnp.zeros(inputs.shape)))
        return ActionCriticState(params, optimizer.init(params))

    def predict(params: Array, obs: Float[Array, "... obs"], action: Float[Array, "... feature"]) -> Array:
        return jnp.asarray(network.apply(unravel(params), jnp.concatenate([obs, action], axis=-1)))

    def advantage(state: ActionCriticState, obs: Array, action: Array) -> Array:
        return predict(state.params, obs, action)

    def fit(
        state: ActionCriticState,
        draw: Callable[[UInt32[Array, "2"], int], Labelled],
        number: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[ActionCriticState, Float[Array, ""]]:
        """Makes `number` gradient steps on the mean squared error.

        Returns:
          The new state; and the part of the labels' mean square that was not predicted before each step.
        """

        def loss(params: Array, rows: Labelled) -> tuple[Float[Array, ""], Float[Array, ""]]:
            error = predict(params, rows.obs, rows.action) - rows.advantage
            count = jnp.maximum(jnp.sum(rows.weight), 1.0)
            size = jnp.sum(rows.weight * rows.advantage**2) / count
            return jnp.sum(rows.weight * error**2) / count, size

        def step(carry, rows: Labelled):
            params, memory, missed, size = carry
            (error, of_labels), gradient = jax.value_and_grad(loss, has_aux=True)(params, rows)
            updates, memory = optimizer.update(gradient, memory, params)
            return jnp.asarray(optax.apply_updates(params, updates)), memory, missed + error, size + of_labels

        start = state.params, state.optimizer, jnp.zeros(()), jnp.zeros(())
        params, memory, missed, size = over_drawn_minibatches(
            step, start, draw, key, number=number, size=stretches, row_size=stretch_length
        )
        return ActionCriticState(params, memory), missed / jnp.where(size > 0, size, 1.0)

    def work(steps: float) -> Work:
        return Work(first.size * steps * (6.0 * stretches * stretch_length + 15.0), shared=False)

    return ActionCritic(init, advantage, fit, work)
