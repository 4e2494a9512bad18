"""Critics that are neural networks, fitted on minibatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxtrpo.config.checks import require_bool, require_not_negative, require_positive, require_whole
from jaxtrpo.critics.critic import Critic, Gradient, Targets
from jaxtrpo.envs.observation_space import Observed, as_space
from jaxtrpo.ops.costs import of_forward_pass
from jaxtrpo.ops.descent import Point, descent
from jaxtrpo.ops.keys import numbered_key
from jaxtrpo.ops.minibatches import Parts, parts_for, pass_over_minibatches
from jaxtrpo.ops.moments import Moments, merge, no_moments, weighted_moments
from jaxtrpo.ops.segments import sum_over_segments
from jaxtrpo.parallel import collectives
from jaxtrpo.policies.frames import stacking
from jaxtrpo.policies.recurrence import (
    Recurrence,
    Sequences,
    entry,
    from_rows,
    gather_inputs,
    rows_of,
    single_step,
    to_rows,
)
from jaxtrpo.policies.value_head import in_units_of


class NetworkState(NamedTuple):
    """Learned state of the network, which predicts (return - mean) / std."""

    params: PyTree
    optimizer: optax.OptState  # for the parameters as one flat vector
    returns: Moments  # of all returns so far


class _Rows(NamedTuple):
    """Samples of all actors: one per row or, for a network with memory, one stretch of an environment per row."""

    obs: Any  # leaves are [row, ...]; or `Sequences`
    value: Float[Array, "row ..."]
    weight: Float[Array, "row ..."]


class Network(NamedTuple):
    """A network with one output, which is linear in a last layer `LAST`."""

    init: Callable[[PRNGKeyArray], PyTree]
    predict: Callable[[PyTree, Any], Float[Array, "..."]]  # (parameters, observations or `Sequences`) -> output
    recurrence: Recurrence | None = None  # of a network with memory; its state are the parameters
    # Parameters -> multiply-adds of a forward pass for one step; None: about as many as there are parameters.
    multiply_adds: Callable[[PyTree], float] | None = None


def stacking_network(network: Network, observed: Observed) -> Network:
    """Returns a network that is given single observations; `network` sees stacks of frames, if there are several."""
    space = as_space(observed)
    if space.frames == 1:
        return network
    predict, recurrence = stacking(network.predict, space)
    return network._replace(predict=predict, recurrence=recurrence)


def require_fit(
    epochs: Any,
    minibatch_size: Any,
    minibatch_per_env: Any,
    learning_rate: Any,
    normalize_returns: Any,
    shared_from: Any,
) -> None:
    """Raises ValueError if a setting of `network_critic` is out of range."""
    require_whole(1, epochs=epochs, minibatch_size=minibatch_size, shared_from=shared_from)
    require_positive(learning_rate=learning_rate)
    require_not_negative(minibatch_per_env=minibatch_per_env)
    require_bool(normalize_returns=normalize_returns)


def network_critic(
    network: Network,
    *,
    epochs: int = 10,
    minibatch_size: int = 128,
    minibatch_per_env: float = 1.0,
    learning_rate: float = 1e-3,
    normalize_returns: bool = True,
    shared_from: int = 64,
) -> Critic:
    """Builds a critic from a network, fitted with Adam on minibatches.

    With fewer than `shared_from` actors, every actor (or one of them, while the others do other work) fits the network
    to the samples of all, so the result does not depend on the number of actors. Most gradient steps are shorter than a
    collective; actors share only those with convolutions (see `minibatches.parts_for`). Since the cost grows with all
    samples, larger numbers of actors share passes: after each pass over their own samples, the parameters and the state
    of Adam are averaged ("iterative parameter mixing", McDonald et al. 2010; McMahan et al. 2017).

    Args:
      network: predicts (return - mean) / std. With memory, minibatches consist of whole stretches.
      epochs: passes over the samples per fit.
      minibatch_size: samples per gradient step.
      minibatch_per_env: least number of them per environment.
      learning_rate: learning rate of Adam.
      normalize_returns: whether to scale targets by the moments of all returns so far. When the moments change, the
        last layer is rescaled to keep predictions the same (PopArt, van Hasselt et al. 2016, section 2.1).
      shared_from: number of actors from which they share a fit.
    """
    in_sequence, predict = network.recurrence is not None, network.predict
    optimizer = optax.adam(learning_rate)

    def init(key: PRNGKeyArray) -> NetworkState:
        params = network.init(key)
        return NetworkState(params, optimizer.init(ravel_pytree(params)[0]), no_moments(()))

    def value(state: NetworkState, obs: Any, elapsed: Int[Array, "..."]) -> Float[Array, "..."]:
        return scaled(state, predict(state.params, obs))

    def scaled(state: NetworkState, output: Float[Array, "..."]) -> Float[Array, "..."]:
        return output * state.returns.std + state.returns.mean

    @jax.named_scope("critic")
    def fit(state: NetworkState, targets: Targets, key: PRNGKeyArray, rate: Float[Array, ""]) -> NetworkState:
        shared = collectives.num_actors() >= shared_from
        reduce = collectives.sum_over_actors if shared else lambda value: value
        samples = targets[:-1] if shared else gather_inputs(targets[:-1])
        num_envs = samples[-1].shape[2]
        obs, _, raw, weight = to_rows(samples, sequences=in_sequence)
        if normalize_returns:
            state = _rescaled(state, merge(state.returns, weighted_moments(raw, weight, reduce)))
        rows = _Rows(obs, (raw - state.returns.mean) / state.returns.std, weight)
        num_rows = targets.num_segments * (len(weight) // targets.value.shape[0])
        size = rows_of(max(minibatch_size, round(minibatch_per_env * num_envs)), weight)
        # As one flat vector, Adam is one operation instead of one per leaf.
        first_params, unravel = ravel_pytree(state.params)
        parts = parts_of(state, size * (weight.size // len(weight)))

        steps = descent(lambda total: optimizer, parts, len(first_params))

        def step(point: Point, minibatch: _Rows) -> Point:
            count = jnp.maximum(jnp.sum(minibatch.weight), 1.0)

            def loss(params: Float[Array, " parameter"], rows: _Rows) -> Float[Array, ""]:
                rows = from_rows(rows, sequences=in_sequence)
                error = predict(unravel(params), rows.obs) - rows.value
                return jnp.sum(rows.weight * error**2) / count

            return steps.step(point, loss, minibatch, rate)

        def epoch(index: Int[Array, ""], point: Point) -> Point:
            return pass_over_minibatches(step, point, rows, num_rows, numbered_key(key, index), size)

        point = steps.start(first_params, state.optimizer)
        if shared:
            # Unrolled, because XLA may lose the order of collectives inside a loop (see `collectives.after`).
            for index in range(epochs):
                point = _mean_over_actors(epoch(jnp.int32(index), point))
        else:
            point = jax.lax.fori_loop(0, epochs, epoch, point)
        params, optimizer_state = steps.end(point)
        return NetworkState(unravel(params), optimizer_state, state.returns)

    def gradient(state: NetworkState, targets: Targets) -> Gradient:
        seen = weighted_moments(targets.value, targets.weight, collectives.sum_over_actors, targets.num_segments)
        # As in `fit`, scale by moments that include these targets; the previous ones are meaningless at first.
        state = _rescaled(state, merge(state.returns, seen)) if normalize_returns else state
        flat_params, unravel = ravel_pytree(state.params)
        count = jnp.maximum(collectives.sum_over_actors(jnp.sum(targets.weight)), 1.0)

        def loss_of(index: Int[Array, ""] | int) -> Float[Array, " parameter"]:
            def loss(params: Float[Array, " parameter"]) -> Float[Array, ""]:
                value = (targets.value[index] - state.returns.mean) / state.returns.std
                error = predict(unravel(params), entry(targets.obs, index)) - value
                return jnp.sum(targets.weight[index] * error**2) / count

            return jax.grad(loss)(flat_params)

        return Gradient(collectives.sum_over_actors(sum_over_segments(loss_of, targets.num_segments)), seen)

    def apply(state: NetworkState, found: Gradient, rate: Float[Array, ""]) -> NetworkState:
        state = _rescaled(state, merge(state.returns, found.moments)) if normalize_returns else state
        flat_params, unravel = ravel_pytree(state.params)
        updates, optimizer_state = optimizer.update(found.gradient, state.optimizer, flat_params)
        return NetworkState(unravel(flat_params + rate * jnp.asarray(updates)), optimizer_state, state.returns)

    def parts_of(state: NetworkState, steps: int) -> Parts:
        # The samples of a fit that is shared by passes are those of one actor.
        may_share = collectives.num_actors() < shared_from
        return parts_for(network.multiply_adds, state.params, steps, may_share=may_share)

    def work(state: NetworkState, samples: int) -> collectives.Work:
        steps, forward = max(samples // minibatch_size, 1), of_forward_pass(network.multiply_adds, state.params)
        # Gradients (6 flops per multiply-add and sample) and Adam (15 per parameter and step).
        flops = epochs * (6.0 * forward * samples + 15.0 * optax.tree.size(state.params) * steps)
        shared = collectives.num_actors() >= shared_from or parts_of(state, minibatch_size).shared
        return collectives.Work(flops, shared)

    return Critic(init, value, fit, work, gradient, apply, _recurrence(network.recurrence, scaled))


def _recurrence(of_network: Recurrence | None, scaled: Callable[[NetworkState, Array], Array]) -> Recurrence | None:
    """Returns the recurrence of the critic, whose outputs are in units of reward."""
    if of_network is None:
        return None

    def unroll(state: NetworkState, inputs: Sequences) -> tuple[Array, PyTree]:
        outputs, carries = of_network.unroll(state.params, inputs)
        return scaled(state, outputs), carries

    return of_network._replace(step=single_step(unroll), unroll=unroll)


def _mean_over_actors(fit: Point) -> Point:
    """Averages parameters and Adam's moments over actors; the step count (a scalar) is the same on all."""
    # Actors that average do not share gradients, so each of them has all parameters.
    total = collectives.sum_over_actors(fit)
    return jax.tree.map(lambda leaf, own: leaf / collectives.num_actors() if leaf.ndim else own, total, fit)


def _rescaled(state: NetworkState, returns: Moments) -> NetworkState:
    """Replaces the moments of the returns and rescales the last layer so that predictions stay the same."""
    return NetworkState(in_units_of(state.params, state.returns, returns), state.optimizer, returns)
