"""A neural network critic, fitted on minibatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxtrpo.config.checks import require_bool, require_not_negative, require_positive, require_sizes, require_whole
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.critics.critic import Critic, CriticMaker, Gradient, Targets
from jaxtrpo.ops.keys import numbered_key
from jaxtrpo.ops.minibatches import pass_over_minibatches
from jaxtrpo.ops.moments import Moments, merge, no_moments, weighted_moments
from jaxtrpo.ops.segments import sum_over_segments
from jaxtrpo.parallel import collectives
from jaxtrpo.policies.networks import LAST, MLP, orthogonal_init


class MLPState(NamedTuple):
    """Learned state of the network, which predicts (return - mean) / std."""

    params: PyTree
    optimizer: optax.OptState  # for the parameters as one flat vector
    returns: Moments  # of all returns so far


class _Rows(NamedTuple):
    """Samples of all actors, one per row."""

    obs: Float[Array, "row obs"]
    value: Float[Array, " row"]
    weight: Float[Array, " row"]


def mlp(
    *,
    hidden: Sequence[int] = (64, 64),
    epochs: int = 10,
    minibatch_size: int = 128,
    minibatch_per_env: float = 1.0,
    learning_rate: float = 1e-3,
    normalize_returns: bool = True,
    shared_from: int = 64,
) -> CriticMaker:
    """A tanh network, fitted with Adam on minibatches.

    Args:
      hidden: sizes of the hidden layers.
      epochs: passes over the batch per fit.
      minibatch_size: environment steps per gradient step.
      minibatch_per_env: least number of them per environment. Thousands of environments collect large batches; without
        a limit, a fit would make thousands of gradient steps, one after another, while most of the device is idle.
      learning_rate: learning rate of Adam.
      normalize_returns: whether to normalise returns by their running mean and standard deviation.
      shared_from: number of actors from which they share a fit: each passes over its own samples, and parameters are
        averaged after every pass. The cost of a fit then grows with the samples per actor instead of all samples, but
        its result depends on the number of actors.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    require_sizes(hidden=hidden)
    require_whole(1, epochs=epochs, minibatch_size=minibatch_size, shared_from=shared_from)
    require_positive(learning_rate=learning_rate)
    require_not_negative(minibatch_per_env=minibatch_per_env)
    require_bool(normalize_returns=normalize_returns)
    settings = {
        "hidden": tuple(hidden),
        "epochs": epochs,
        "minibatch_size": minibatch_size,
        "minibatch_per_env": minibatch_per_env,
        "learning_rate": learning_rate,
        "normalize_returns": normalize_returns,
        "shared_from": shared_from,
    }
    return CriticMaker(spec_string_of(mlp, settings), lambda size: mlp_critic(size, **settings))


def mlp_critic(
    observation_size: int,
    *,
    hidden: Sequence[int] = (64, 64),
    epochs: int = 10,
    minibatch_size: int = 128,
    minibatch_per_env: float = 1.0,
    learning_rate: float = 1e-3,
    normalize_returns: bool = True,
    shared_from: int = 64,
) -> Critic:
    """Builds a tanh network critic, fitted with Adam on minibatches.

    With fewer than `shared_from` actors, the fit is not shared: every actor (or one of them, while the others do other
    work) fits the network to the samples of all, so the result does not depend on the number of actors. The cost grows
    with all samples, so larger numbers of actors share the fit. They do not share gradient steps, each of which is
    shorter than a collective, but passes: after each pass, the parameters and the state of Adam are averaged
    ("iterative parameter mixing", McDonald et al. 2010; McMahan et al. 2017).

    Args:
      observation_size: length of an observation.
      hidden: sizes of the hidden layers.
      epochs: passes over the samples per fit.
      minibatch_size: samples per gradient step.
      minibatch_per_env: least number of them per environment.
      learning_rate: learning rate of Adam.
      normalize_returns: whether to scale targets by the moments of all returns so far. When the moments change, the
        last layer is rescaled to keep predictions the same (PopArt, van Hasselt et al. 2016, section 2.1).
      shared_from: number of actors from which they share a fit.
    """
    network = MLP(tuple(hidden), 1)
    optimizer = optax.adam(learning_rate)

    def init(key: PRNGKeyArray) -> MLPState:
        # Predicts 0 at first. Random predictions would be preserved once the scale of the returns is known (see
        # `_rescaled`), and with small rewards the policy would follow that noise.
        params = orthogonal_init(network, key, observation_size, last_scale=0.0)
        return MLPState(params, optimizer.init(ravel_pytree(params)[0]), no_moments(()))

    def predict(params: PyTree, obs: Float[Array, "... obs"]) -> Float[Array, "..."]:
        return jnp.asarray(network.apply(params, obs))[..., 0]

    def value(state: MLPState, obs: Float[Array, "... obs"], elapsed: Int[Array, "..."]) -> Float[Array, "..."]:
        return predict(state.params, obs) * state.returns.std + state.returns.mean

    @jax.named_scope("critic")
    def fit(state: MLPState, targets: Targets, key: PRNGKeyArray, rate: Float[Array, ""]) -> MLPState:
        shared = collectives.num_actors() >= shared_from
        reduce = collectives.sum_over_actors if shared else lambda value: value
        samples = targets[:-1] if shared else collectives.gather_envs(targets[:-1], axis=2)
        num_envs = samples[-1].shape[2]
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), samples)
        obs, _, raw, weight = flat
        if normalize_returns:
            state = _rescaled(state, merge(state.returns, weighted_moments(raw, weight, reduce)))
        rows = _Rows(obs, (raw - state.returns.mean) / state.returns.std, weight)
        num_rows = targets.num_segments * (weight.size // targets.value.shape[0])
        size = max(minibatch_size, round(minibatch_per_env * num_envs))
        # As one flat vector, Adam is one operation instead of one per leaf.
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
            return pass_over_minibatches(step, carry, rows, num_rows, numbered_key(key, index), size)

        carry = first_params, state.optimizer
        if shared:
            # Unrolled, because XLA may lose the order of collectives inside a loop (see `collectives.after`).
            for index in range(epochs):
                carry = _mean_over_actors(epoch(jnp.int32(index), carry))
        else:
            carry = jax.lax.fori_loop(0, epochs, epoch, carry)
        params, optimizer_state = carry
        return MLPState(unravel(params), optimizer_state, state.returns)

    def gradient(state: MLPState, targets: Targets) -> Gradient:
        seen = weighted_moments(targets.value, targets.weight, collectives.sum_over_actors, targets.num_segments)
        # As in `fit`, scale by moments that include these targets; the previous ones are meaningless at first.
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
        # Gradients (6 flops per parameter and sample) and Adam (15 per parameter and step).
        flops = epochs * optax.tree.size(state.params) * (6.0 * samples + 15.0 * steps)
        return collectives.Work(flops, shared=collectives.num_actors() >= shared_from)

    return Critic(init, value, fit, work, gradient, apply)


def _mean_over_actors(fit: tuple[Array, optax.OptState]) -> tuple[Array, optax.OptState]:
    """Averages parameters and Adam's moments over actors; the step count (a scalar) is the same on all."""
    total = collectives.sum_over_actors(fit)
    return jax.tree.map(lambda leaf, own: leaf / collectives.num_actors() if leaf.ndim else own, total, fit)


def _rescaled(state: MLPState, returns: Moments) -> MLPState:
    """Replaces the moments of the returns and rescales the last layer so that predictions stay the same."""
    last = state.params["params"][LAST]
    scale = state.returns.std / returns.std
    shift = (state.returns.mean - returns.mean) / returns.std
    last = {"kernel": last["kernel"] * scale, "bias": last["bias"] * scale + shift}
    params = {"params": {**state.params["params"], LAST: last}}
    return MLPState(params, state.optimizer, returns)
