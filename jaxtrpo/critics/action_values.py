"""An action-value critic, fitted off-policy: the advantage of actions over those of the current policy."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Num, PRNGKeyArray, PyTree, UInt32

from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.ops.minibatches import over_drawn_minibatches
from jaxtrpo.parallel.collectives import Work
from jaxtrpo.policies.action_units import encoded, encoded_size
from jaxtrpo.policies.distributions import Differentiable
from jaxtrpo.policies.heads import LAST, last_layer_scaled


class Labelled(NamedTuple):
    """Environment steps with their return estimates, which the critic is fitted to."""

    obs: Float[Array, "*rows obs"]  # normalised
    action: Num[Array, "*rows action"]  # action taken, in policy units
    usual: Differentiable  # distributions of the current policy; every leaf has the axes of the rows
    other: Num[Array, "*rows action"]  # action sampled from the current policy
    worth: Float[Array, "*rows"]  # estimated return from the step on, in units of reward
    weight: Float[Array, "*rows"]  # 1 for a step that counts, else 0


class ActionCriticState(NamedTuple):
    """Learned state. Parameters are one flat vector, so that Adam is one operation instead of one per leaf."""

    params: Float[Array, " parameter"]  # of the advantage and value networks
    target: Float[Array, " value_parameter"]  # of the target network, a slow copy of the value network
    optimizer: optax.OptState
    unit: Float[Array, ""]  # network outputs are in multiples of this many units of reward; 0 before the first fit


class ActionCritic(NamedTuple):
    """Pure functions of a critic that predicts advantages of actions.

    Observations are normalised; advantages and values are in units of reward.
    """

    init: Callable[[PRNGKeyArray], ActionCriticState]
    # (state, observations, actions with any additional leading axes) -> advantages up to a constant per observation
    advantage: Callable[[ActionCriticState, Float[Array, "*rows obs"], Num[Array, "... action"]], Float[Array, "..."]]
    # (state, policy's distributions, observations, actions, actions sampled from the policy) -> advantages, whose mean
    # over the policy's actions is 0
    advantage_over: Callable[
        [
            ActionCriticState,
            Differentiable,
            Float[Array, "*rows obs"],
            Num[Array, "*rows action"],
            Num[Array, "*rows action"],
        ],
        Float[Array, "*rows"],
    ]
    value: Callable[[ActionCriticState, Float[Array, "*rows obs"]], Float[Array, "*rows"]]  # of the target network
    # (state, unit, draw, gradient steps, key) -> (state, fraction of variance unexplained by the advantages); see `fit`
    fit: Callable[
        [
            ActionCriticState,
            Float[Array, ""],
            Callable[[ActionCriticState, UInt32[Array, "2"], int], Labelled],
            Int[Array, ""],
            PRNGKeyArray,
        ],
        tuple[ActionCriticState, Float[Array, ""]],
    ]
    work: Callable[[float], Work]  # number of gradient steps -> cost of a fit


class _Joined(nn.Module):
    """A dense layer on the concatenation of its inputs, which broadcasts instead of concatenating them."""

    size: int

    @nn.compact
    def __call__(self, *inputs: Float[Array, "... _input"]) -> Float[Array, "... output"]:
        sizes = [each.shape[-1] for each in inputs]
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (sum(sizes), self.size))
        parts = jnp.split(kernel, list(itertools.accumulate(sizes))[:-1])
        bias = self.param("bias", nn.initializers.zeros, (self.size,))
        return functools.reduce(jnp.add, [each @ part for each, part in zip(inputs, parts, strict=True)], bias)


class _Network(nn.Module):
    """A ReLU network with layer norm, which keeps extrapolation beyond the actions in the data bounded."""

    hidden: Sequence[int]

    @nn.compact
    def __call__(self, *inputs: Float[Array, "... _input"]) -> Float[Array, "..."]:
        for size in self.hidden:
            inputs = (nn.relu(nn.LayerNorm()(_Joined(size)(*inputs))),)
        return _Joined(1, name=LAST)(*inputs)[..., 0]


def action_critic(
    observation_size: int,
    space: ActionSpace,
    *,
    hidden: Sequence[int],
    value_hidden: Sequence[int],
    learning_rate: float,
    minibatch_size: int,
    target_rate: float,
    at_once: int | None = None,
) -> ActionCritic:
    """Builds an action-value critic from an advantage network D and a value network V, fitted together.

        Q(s, a) = V(s) + D(s, a) - E_policy[D(s, .)]

    is fitted to the returns of steps by any policy: a dueling network (Wang et al. 2016), but for the value of a given
    policy instead of the optimal one. V can learn the value of the current policy from steps of earlier ones, because D
    accounts for the effect of their actions.

    Args:
      observation_size: length of an observation.
      space: action space.
      hidden: sizes of the hidden layers of D.
      value_hidden: sizes of the hidden layers of V.
      learning_rate: learning rate of Adam.
      minibatch_size: environment steps per gradient step.
      target_rate: fraction by which the target network moves towards V in each gradient step.
      at_once: minibatches that are drawn and labelled together (see `over_drawn_minibatches`).
    """
    networks = _Network(tuple(hidden)), _Network(tuple(value_hidden))
    optimizer = optax.adam(learning_rate)
    obs, features = jnp.zeros(observation_size), jnp.zeros(encoded_size(space))

    def fresh(key: PRNGKeyArray) -> tuple[PyTree, PyTree]:
        of_advantages, of_values = jax.random.split(key)
        return networks[0].init(of_advantages, obs, features), networks[1].init(of_values, obs)

    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), jax.eval_shape(fresh, jax.random.PRNGKey(0)))
    sizes = tuple(optax.tree.size(each) for each in blank)
    unravel, unravel_values = ravel_pytree(blank)[1], ravel_pytree(blank[1])[1]

    def init(key: PRNGKeyArray) -> ActionCriticState:
        params = ravel_pytree(fresh(key))[0]
        return ActionCriticState(params, params[sizes[0] :], optimizer.init(params), jnp.zeros(()))

    def of_actions(params: PyTree, obs: Array, action: Array) -> Array:
        return jnp.asarray(networks[0].apply(params, obs, encoded(action, space)))

    def over(params: PyTree, usual: Differentiable, obs: Array, action: Array, other: Array) -> Array:
        def better(tried: Array) -> Array:  # than the action taken; one matrix product for all is faster
            found = of_actions(params, obs, jnp.concatenate([action[None], tried.reshape(-1, *action.shape)]))
            return (found[1:] - found[0]).reshape(tried.shape[:-1])

        return -usual.expected_value(usual, other, better)

    def of_values(params: PyTree, obs: Array) -> Array:
        return jnp.asarray(networks[1].apply(params, obs))

    def advantage(state: ActionCriticState, obs: Array, action: Array) -> Array:
        return state.unit * of_actions(unravel(state.params)[0], obs, action)

    def advantage_over(
        state: ActionCriticState, usual: Differentiable, obs: Array, action: Array, other: Array
    ) -> Array:
        return state.unit * over(unravel(state.params)[0], usual, obs, action, other)

    def value(state: ActionCriticState, obs: Array) -> Array:
        return state.unit * of_values(unravel_values(state.target), obs)

    @jax.named_scope("action_critic")
    def fit(
        state: ActionCriticState,
        unit: Float[Array, ""],
        draw: Callable[[ActionCriticState, UInt32[Array, "2"], int], Labelled],
        number: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[ActionCriticState, Float[Array, ""]]:
        """Takes gradient steps on the mean squared error of Q.

        Args:
          state: current state.
          unit: new unit of the network outputs, in units of reward; if it is 0, nothing is learned.
          draw: (state at that time, key, number) -> that many labelled steps.
          number: number of gradient steps.
          key: PRNG key of the draws.

        Returns:
          The new state, and the fraction of the variance left by V that D did not explain either, measured on each
          minibatch before its gradient step.
        """
        state = _in_units(state, unit)
        number = jnp.where(unit > 0, number, 0)

        def loss(params: Array, rows: Labelled) -> tuple[Float[Array, ""], Float[Array, ""]]:
            of_advantage, of_value = unravel(params)
            better = over(of_advantage, rows.usual, rows.obs, rows.action, rows.other)
            left = rows.worth / unit - of_values(of_value, rows.obs)
            count = jnp.maximum(jnp.sum(rows.weight), 1.0)
            return jnp.sum(rows.weight * (left - better) ** 2) / count, jnp.sum(rows.weight * left**2) / count

        def step(carry, rows: Labelled):
            params, target, memory, total_error, total_left = carry
            (error, left), gradient = jax.value_and_grad(loss, has_aux=True)(params, rows)
            updates, memory = optimizer.update(gradient, memory, params)
            params = jnp.asarray(optax.apply_updates(params, updates))
            target = target + target_rate * (params[sizes[0] :] - target)
            return params, target, memory, total_error + error, total_left + left

        def drawn(carry, key: UInt32[Array, "2"], number: int) -> Labelled:
            return draw(state._replace(params=carry[0], target=carry[1]), key, number)

        start = state.params, state.target, state.optimizer, jnp.zeros(()), jnp.zeros(())
        params, target, memory, total_error, total_left = over_drawn_minibatches(
            step, start, drawn, key, number=number, size=minibatch_size, at_once=at_once
        )
        return ActionCriticState(params, target, memory, unit), total_error / jnp.where(total_left > 0, total_left, 1.0)

    def _in_units(state: ActionCriticState, unit: Float[Array, ""]) -> ActionCriticState:
        """Changes the unit but keeps the predictions (PopArt, van Hasselt et al. 2016, section 2.1)."""
        change = jnp.where(state.unit > 0, state.unit / unit, 1.0)

        params, target = unravel(state.params), unravel_values(state.target)
        scaled_params, scaled_target = last_layer_scaled((params, target), change)
        return state._replace(params=ravel_pytree(scaled_params)[0], target=ravel_pytree(scaled_target)[0], unit=unit)

    def work(steps: float) -> Work:
        # D at the actions of each row (for discrete actions, all choices of each coordinate), sharing the product with
        # the observation; V with its derivatives, and V for the labels; Adam.
        each = sum(count + 1 for count in space.counts) or 3
        of_obs = observation_size * hidden[0] if hidden else observation_size
        of_rows = minibatch_size * (6.0 * each * sizes[0] - 6.0 * (each - 1) * of_obs + 8.0 * sizes[1])
        return Work(steps * (of_rows + 15.0 * sum(sizes)), shared=False)

    return ActionCritic(init, advantage, advantage_over, value, fit, work)
