"""A neural critic, fitted with minibatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxtrpo.config.checks import require_bool, require_positive, require_sizes, require_whole
from jaxtrpo.config.specs import call_in_words
from jaxtrpo.critics.critic import Critic, CriticMaker, Gradient, Targets
from jaxtrpo.ops.keys import numbered_key
from jaxtrpo.ops.minibatches import pass_over_minibatches
from jaxtrpo.ops.moments import Moments, merge, no_moments, weighted_moments
from jaxtrpo.ops.segments import sum_over_segments
from jaxtrpo.parallel import collectives
from jaxtrpo.policies.networks import LAST, MLP, orthogonal_init


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


def mlp(
    *,
    hidden: Sequence[int] = (64, 64),
    epochs: int = 10,
    minibatch_size: int = 128,
    learning_rate: float = 1e-3,
    normalize_returns: bool = True,
    shared_from: int = 64,
) -> CriticMaker:
    """A tanh network fitted with Adam on minibatches.

    Args:
      hidden: sizes of the hidden layers.
      epochs: passes over the batch in a fit.
      minibatch_size: environment steps in one gradient step.
      learning_rate: of Adam.
      normalize_returns: predict returns less their running mean, over their standard deviation.
      shared_from: so many actors, or more, share a fit: each passes over its own samples, and after every pass they go
        on from the mean of what they have come to. What a fit takes then follows the samples of one actor, not those of
        all; what it finds then depends on how many there are.

    Raises:
      ValueError: a setting is out of bounds; one sentence that names it.
    """
    require_sizes(hidden=hidden)
    require_whole(1, epochs=epochs, minibatch_size=minibatch_size, shared_from=shared_from)
    require_positive(learning_rate=learning_rate)
    require_bool(normalize_returns=normalize_returns)
    settings = {
        "hidden": tuple(hidden),
        "epochs": epochs,
        "minibatch_size": minibatch_size,
        "learning_rate": learning_rate,
        "normalize_returns": normalize_returns,
        "shared_from": shared_from,
    }
    return CriticMaker(call_in_words(mlp, settings), lambda size: mlp_critic(size, **settings))


def mlp_critic(
    observation_size: int,
    *,
    hidden: Sequence[int] = (64, 64),
    epochs: int = 10,
    minibatch_size: int = 128,
    learning_rate: float = 1e-3,
    normalize_returns: bool = True,
    shared_from: int = 64,
) -> Critic:
    """A tanh network fitted with Adam on minibatches.

    Few actors do not share a fit. Everyone, or one while the others do something else, fits the network to the samples
    of all, so that the result does not depend on how many there are. What that takes grows with the samples of all, so
    that many actors share it. Not gradient steps, each of which is shorter than a meeting would be, but passes:
    after each they go on from the mean of their parameters and of what Adam remembers ("iterative parameter mixing",
    McDonald et al. 2010; McMahan et al. 2017).

    Args:
      observation_size: length of an observation.
      hidden: sizes of the hidden layers.
      epochs: passes over the samples in a fit.
      minibatch_size: samples a gradient step.
      learning_rate: of Adam.
      normalize_returns: scale targets by the moments of all returns so far. When the moments change the last layer is
        rescaled, so that predictions stay what they were (PopArt, van Hasselt et al. 2016, section 2.1).
      shared_from: so many actors share a fit.
    """
    network = MLP(tuple(hidden), 1)
    optimizer = optax.adam(learning_rate)

    def init(key: PRNGKeyArray) -> MLPState:
        # Nothing is predicted at first. Anything else would be kept as it is when the unit of the returns is found
        # (see `_rescaled`), and where rewards are small the policy would climb that noise.
        params = orthogonal_init(network, key, observation_size, last_scale=0.0)
        return MLPState(params, optimizer.init(ravel_pytree(params)[0]), no_moments(()))

    def predict(params: PyTree, obs: Float[Array, "... obs"]) -> Float[Array, "..."]:
        return jnp.asarray(network.apply(params, obs))[..., 0]

    def value(state: MLPState, obs: Float[Array, "... obs"], elapsed: Int[Array, "..."]) -> Float[Array, "..."]:
        return predict(state.params, obs) * state.returns.std + state.returns.mean

    def fit(state: MLPState, targets: Targets, key: PRNGKeyArray, rate: Float[Array, ""]) -> MLPState:
        shared = collectives.num_actors() >= shared_from
        together = collectives.sum_over_actors if shared else lambda value: value
        everyone = targets[:-1] if shared else collectives.gather_envs(targets[:-1], axis=2)
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), everyone)
        obs, _, raw, weight = flat
        if normalize_returns:
            state = _rescaled(state, merge(state.returns, weighted_moments(raw, weight, together)))
        rows = _Rows(obs, (raw - state.returns.mean) / state.returns.std, weight)
        num_rows = targets.num_segments * (weight.size // targets.value.shape[0])
        # One vector instead of a tree: Adam is then one operation, not one a leaf.
        first_params, unravel = ravel_pytree(state.params)

        def loss(params: Float[Array, " parameter"], rows: _Rows) -> Float[Array, ""]:
            error = predict(unravel(params), rows.obs) - rows.value
            return jnp.sum(rows.weight * error**2) / jnp.maximum(jnp.sum(rows.weight), 1.0)

        def step(carry: tuple[Array, optax.OptState], minibatch: _Rows) -> tuple[Array, optax.OptState]:
            params, optimizer_state = carry
            gradient = jax.grad(loss)(params, minibatch)
            updates, optimizer_state = optimizer.update(gradient, optimizer_state, params)
            return params + rate * jnp.asarray(updates), optimizer_state

        def epoch(index: Int[Array, ""], carry: tuple[Array, optax.OptState]) -> tuple[Array, optax.OptState]:
            return pass_over_minibatches(step, carry, rows, num_rows, numbered_key(key, index), minibatch_size)

        carry = first_params, state.optimizer
        if shared:
            # Not in a loop, where XLA may forget the order of meetings (see `actors.after`).
            for index in range(epochs):
                carry = _mean_over_actors(epoch(jnp.int32(index), carry))
        else:
            carry = jax.lax.fori_loop(0, epochs, epoch, carry)
        params, optimizer_state = carry
        return MLPState(unravel(params), optimizer_state, state.returns)

    def gradient(state: MLPState, targets: Targets) -> Gradient:
        seen = weighted_moments(targets.value, targets.weight, collectives.sum_over_actors, targets.num_segments)
        # As in `fit`: in the unit that these targets are a part of. That of before means nothing at first.
        state = _rescaled(state, merge(state.returns, seen)) if normalize_returns else state
        flat_params, unravel = ravel_pytree(state.params)
        count = jnp.maximum(collectives.sum_over_actors(jnp.sum(targets.weight)), 1.0)

        def loss_of(index: Int[Array, ""] | int) -> Float[Array, " parameter"]:
            def loss(params: Float[Array, " parameter"]) -> Float[Array, ""]:
                value = (targets.value[index] - state.returns.mean) / state.returns.std
                error = predict(unravel(params), targets.obs[index]) - value
                return jnp.sum(targets.weight[index] * error**2) / count

            return jax.grad(loss)(flat_params)

        return Gradient(collectives.sum_over_actors(sum_over_segments(loss_of, targets.num_segments)), seen)

    def apply(state: MLPState, found: Gradient, rate: Float[Array, ""]) -> MLPState:
        state = _rescaled(state, merge(state.returns, found.moments)) if normalize_returns else state
        flat_params, unravel = ravel_pytree(state.params)
        updates, optimizer_state = optimizer.update(found.gradient, state.optimizer, flat_params)
        return MLPState(unravel(flat_params + rate * jnp.asarray(updates)), optimizer_state, state.returns)

    def work(state: MLPState, samples: int) -> collectives.Work:
        steps = max(samples // minibatch_size, 1)
        # Derivatives, and Adam.
        flops = epochs * optax.tree.size(state.params) * (6.0 * samples + 15.0 * steps)
        return collectives.Work(flops, shared=collectives.num_actors() >= shared_from)

    return Critic(init, value, fit, work, gradient, apply)


def _mean_over_actors(fit: tuple[Array, optax.OptState]) -> tuple[Array, optax.OptState]:
    """Of parameters and moments; the number of steps is the same on all."""
    total = collectives.sum_over_actors(fit)
    return jax.tree.map(lambda leaf, own: leaf / collectives.num_actors() if leaf.ndim else own, total, fit)


def _rescaled(state: MLPState, returns: Moments) -> MLPState:
    """The same predictions with other moments of the returns."""
    last = state.params["params"][LAST]
    scale = state.returns.std / returns.std
    shift = (state.returns.mean - returns.mean) / returns.std
    last = {"kernel": last["kernel"] * scale, "bias": last["bias"] * scale + shift}
    params = {"params": {**state.params["params"], LAST: last}}
    return MLPState(params, state.optimizer, returns)
