"""A critic of actions: how much better an action is than what the policy would do, learned from many batches."""

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
from jaxtrpo.policies.distributions import Differentiable, encoded, encoded_size
from jaxtrpo.policies.networks import LAST, in_last_layer


class Labelled(NamedTuple):
    """Steps and what they were worth."""

    obs: Float[Array, "*rows obs"]  # normalised
    action: Num[Array, "*rows action"]  # that was taken, in policy units
    usual: Differentiable  # the present policy's distributions; every leaf has the axes of the rows
    other: Num[Array, "*rows action"]  # that it would take
    worth: Float[Array, "*rows"]  # reward of the step and of what follows it
    weight: Float[Array, "*rows"]  # 1 for a step that counts, 0 for one that does not


class ActionCriticState(NamedTuple):
    """What is learned; the parameters are one vector, so that Adam is one operation, not one a leaf."""

    params: Float[Array, " parameter"]  # of advantages and values
    target: Float[Array, " value_parameter"]  # of a slow copy of the values
    optimizer: optax.OptState
    unit: Float[Array, ""]  # of what the networks say, in units of reward; 0 before the first fit


class ActionCritic(NamedTuple):
    """Predicts advantages. Pure functions; what is learned is in the state. Observations are normalised ones.

    Advantages and values are in units of reward.
    """

    init: Callable[[PRNGKeyArray], ActionCriticState]
    # (state, observations, actions with any further leading axes) -> advantages; only differences mean something
    advantage: Callable[[ActionCriticState, Float[Array, "*rows obs"], Num[Array, "... action"]], Float[Array, "..."]]
    # (state, policy's distributions, observations, actions, policy's own actions) -> advantages, whose mean over the
    # policy's actions is 0
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
    value: Callable[[ActionCriticState, Float[Array, "*rows obs"]], Float[Array, "*rows"]]  # by the slow copy
    # (state, unit, draw, gradient steps, key) -> (state, part of what values left open that was not predicted either);
    # draw: (state, key, number) -> so many steps
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
    work: Callable[[float], Work]  # gradient steps -> of a fit


class _Joined(nn.Module):
    """A dense layer of several inputs, as if they were one; those with fewer leading axes are not repeated for it."""

    size: int

    @nn.compact
    def __call__(self, *inputs: Float[Array, "... _input"]) -> Float[Array, "... output"]:
        sizes = [each.shape[-1] for each in inputs]
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (sum(sizes), self.size))
        parts = jnp.split(kernel, list(itertools.accumulate(sizes))[:-1])
        bias = self.param("bias", nn.initializers.zeros, (self.size,))
        return functools.reduce(jnp.add, [each @ part for each, part in zip(inputs, parts, strict=True)], bias)


class _Network(nn.Module):
    """Layer norm keeps what it says beyond the actions that were taken from growing without bounds."""

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
) -> ActionCritic:
    """Two networks with layer norm, D of advantages and V of values, fitted together.

        Q(s, a) = V(s) + D(s, a) - the mean of D(s, .) over the policy

    is fitted to what steps were worth, whoever made them (a dueling network, Wang et al. 2016, for the value of a
    policy in place of that of the best one). V learns what the present policy is worth from steps of all policies
    before it, since D tells what their actions made of it.

    Args:
      observation_size: numbers in an observation.
      space: of the actions.
      hidden: sizes of the hidden layers of D.
      value_hidden: of V.
      learning_rate: of Adam.
      minibatch_size: environment steps in a gradient step.
      target_rate: part of the way that the slow copy of V goes towards V in a gradient step.
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
        def better(tried: Array) -> Array:  # than the action that was taken; all in one product, which is faster
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

    def fit(
        state: ActionCriticState,
        unit: Float[Array, ""],
        draw: Callable[[ActionCriticState, UInt32[Array, "2"], int], Labelled],
        number: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[ActionCriticState, Float[Array, ""]]:
        """Makes gradient steps on the mean squared error.

        Args:
          state: of before.
          unit: that values shall be in, from now on; while it is 0 there is nothing to learn, and nothing is.
          draw: (state as it is then, key, number) -> so many steps, and what they were worth.
          number: gradient steps.
          key: of the draws.

        Returns:
          The new state; and the part of what the values left open that was not predicted either before each step.
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
            params, target, memory, missed, open_ = carry
            (error, left), gradient = jax.value_and_grad(loss, has_aux=True)(params, rows)
            updates, memory = optimizer.update(gradient, memory, params)
            params = jnp.asarray(optax.apply_updates(params, updates))
            target = target + target_rate * (params[sizes[0] :] - target)
            return params, target, memory, missed + error, open_ + left

        def drawn(carry, key: UInt32[Array, "2"], number: int) -> Labelled:
            return draw(state._replace(params=carry[0], target=carry[1]), key, number)

        start = state.params, state.target, state.optimizer, jnp.zeros(()), jnp.zeros(())
        params, target, memory, missed, open_ = over_drawn_minibatches(
            step, start, drawn, key, number=number, size=minibatch_size
        )
        return ActionCriticState(params, target, memory, unit), missed / jnp.where(open_ > 0, open_, 1.0)

    def _in_units(state: ActionCriticState, unit: Float[Array, ""]) -> ActionCriticState:
        """The same predictions in other units (van Hasselt et al. 2016, section 2.1)."""
        change = jnp.where(state.unit > 0, state.unit / unit, 1.0)

        def scaled(path: tuple, leaf: Array) -> Array:
            return change * leaf if in_last_layer(path) else leaf

        params, target = unravel(state.params), unravel_values(state.target)
        scaled_params, scaled_target = jax.tree_util.tree_map_with_path(scaled, (params, target))
        return state._replace(params=ravel_pytree(scaled_params)[0], target=ravel_pytree(scaled_target)[0], unit=unit)

    def work(steps: float) -> Work:
        # The actions of a row (of choices all, one coordinate at a time), whose observation is multiplied once; values
        # and their derivatives, and those that labels are made of; Adam.
        each = sum(count + 1 for count in space.counts) or 3
        of_obs = observation_size * hidden[0] if hidden else observation_size
        of_rows = minibatch_size * (6.0 * each * sizes[0] - 6.0 * (each - 1) * of_obs + 8.0 * sizes[1])
        return Work(steps * (of_rows + 15.0 * sum(sizes)), shared=False)

    return ActionCritic(init, advantage, advantage_over, value, fit, work)
