"""A neural critic, fitted with minibatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxtrpo import actors
from jaxtrpo.critics.critic import Critic, Targets
from jaxtrpo.ops.keys import numbered_key
from jaxtrpo.ops.moments import Moments, merge, no_moments, weighted_moments
from jaxtrpo.ops.permutation import shuffled
from jaxtrpo.policies.networks import LAST, MLP, orthogonal_init

# Fetching the rows of several minibatches takes half as long as fetching those of one after the other; more rows would
# leave the cache.
ROWS_AT_ONCE = 1_024


class MLPState(NamedTuple):
    """The network predicts (return - mean) / std."""

    params: PyTree
    optimizer: optax.OptState  # of the parameters as one vector
    returns: Moments  # of the returns seen so far


class _Rows(NamedTuple):
    """Samples of all actors, one a row."""

    obs: Float[Array, "row obs"]
    value: Float[Array, " row"]
    weight: Float[Array, " row"]


def mlp_critic(
    observation_size: int,
    *,
    hidden: Sequence[int] = (64, 64),
    epochs: int = 10,
    minibatch_size: int = 128,
    learning_rate: float = 1e-3,
    normalize_returns: bool = True,
) -> Critic:
    """A tanh network fitted with Adam on minibatches.

    Actors do not share a fit: a gradient step on a minibatch is shorter than the meeting of actors that sharing it
    would need. Everyone, or one while the others do something else, fits the network to the samples of all, so that the
    result does not depend on how many there are.

    Args:
      observation_size: length of an observation.
      hidden: sizes of the hidden layers.
      epochs: passes over the samples in a fit.
      minibatch_size: samples a gradient step.
      learning_rate: of Adam.
      normalize_returns: scale targets by the moments of all returns so far. When the moments change the last layer is
        rescaled, so that predictions stay what they were (PopArt, van Hasselt et al. 2016, section 2.1).
    """
    network = MLP(tuple(hidden), 1)
    optimizer = optax.adam(learning_rate)

    def init(key: PRNGKeyArray) -> MLPState:
        params = orthogonal_init(network, key, observation_size, last_scale=1.0)
        return MLPState(params, optimizer.init(ravel_pytree(params)[0]), no_moments(()))

    def predict(params: PyTree, obs: Float[Array, "... obs"]) -> Float[Array, "..."]:
        return jnp.asarray(network.apply(params, obs))[..., 0]

    def value(state: MLPState, obs: Float[Array, "... obs"], elapsed: Int[Array, "..."]) -> Float[Array, "..."]:
        return predict(state.params, obs) * state.returns.std + state.returns.mean

    def fit(state: MLPState, targets: Targets, key: PRNGKeyArray) -> MLPState:
        everyone = actors.gather_envs(targets[:-1], axis=2)
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), everyone)
        obs, _, raw, weight = flat
        if normalize_returns:
            state = _rescaled(state, merge(state.returns, weighted_moments(raw, weight)))
        rows = _Rows(obs, (raw - state.returns.mean) / state.returns.std, weight)
        per_segment = weight.size // targets.value.shape[0]
        num_rows = targets.num_segments * per_segment
        size = min(minibatch_size, weight.size)
        num_steps = jnp.maximum(num_rows // size, 1)
        at_once = max(min(ROWS_AT_ONCE, weight.size) // size, 1)  # minibatches
        # One vector instead of a tree: Adam is then one operation, not one a leaf.
        first_params, unravel = ravel_pytree(state.params)

        def loss(params: Float[Array, " parameter"], rows: _Rows) -> Float[Array, ""]:
            error = predict(unravel(params), rows.obs) - rows.value
            return jnp.sum(rows.weight * error**2) / jnp.maximum(jnp.sum(rows.weight), 1.0)

        def epoch(index: Int[Array, ""], carry: tuple[Array, optax.OptState]) -> tuple[Array, optax.OptState]:
            for_order = numbered_key(key, index)

            def some_steps(number: Int[Array, ""], carry: tuple[Array, optax.OptState]) -> tuple[Array, optax.OptState]:
                # The rows that hold data come first, in a random order; sorting one would take longer than the fit.
                chosen = shuffled(for_order, number * at_once * size + jnp.arange(at_once * size), num_rows)
                # The barrier keeps XLA from fetching each minibatch where it is used.
                fetched = jax.lax.optimization_barrier(jax.tree.map(lambda leaf: leaf[chosen], rows))

                def step(within: Int[Array, ""], carry: tuple[Array, optax.OptState]) -> tuple[Array, optax.OptState]:
                    params, optimizer_state = carry
                    minibatch = jax.tree.map(
                        lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, within * size, size), fetched
                    )
                    gradient = jax.grad(loss)(params, minibatch)
                    updates, optimizer_state = optimizer.update(gradient, optimizer_state, params)
                    return jnp.asarray(optax.apply_updates(params, updates)), optimizer_state

                return jax.lax.fori_loop(0, jnp.minimum(at_once, num_steps - number * at_once), step, carry)

            return jax.lax.fori_loop(0, -(-num_steps // at_once), some_steps, carry)

        params, optimizer_state = jax.lax.fori_loop(0, epochs, epoch, (first_params, state.optimizer))
        return MLPState(unravel(params), optimizer_state, state.returns)

    def repeated_flops(state: MLPState, samples: int) -> float:
        steps = max(samples // minibatch_size, 1)
        return epochs * optax.tree.size(state.params) * (6.0 * samples + 15.0 * steps)  # derivatives, and Adam

    return Critic(init, value, fit, repeated_flops)


def _rescaled(state: MLPState, returns: Moments) -> MLPState:
    """The same predictions with other moments of the returns."""
    last = state.params["params"][LAST]
    scale = state.returns.std / returns.std
    shift = (state.returns.mean - returns.mean) / returns.std
    last = {"kernel": last["kernel"] * scale, "bias": last["bias"] * scale + shift}
    params = {"params": {**state.params["params"], LAST: last}}
    return MLPState(params, state.optimizer, returns)
