"""Soft actor-critic, SAC (Haarnoja et al. 2018): off-policy learning that also maximises entropy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxtrpo.algorithms.algorithm import Algorithm, Info, Learner, Spec, replay_for, require_plain_networks
from jaxtrpo.algorithms.q_learning import (
    NUM_ENVS,
    STEPS_PER_UPDATE,
    Bellman,
    Params,
    q_learner,
    require_settings,
)
from jaxtrpo.config.checks import require_number, require_positive, require_sizes
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.critics.critic import is_network
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.ops.minibatches import minibatches_for
from jaxtrpo.parallel.collectives import on_cpu
from jaxtrpo.policies.action_units import encoded
from jaxtrpo.policies.distributions import Distribution
from jaxtrpo.policies.heads import LAST, last_layer_scaled
from jaxtrpo.policies.making import distribution_of
from jaxtrpo.policies.networks import Policy
from jaxtrpo.policies.squashed import SquashedGaussian
from jaxtrpo.rollout.replay import Transitions

CRITICS = 2  # the smaller value counts


class Critics(NamedTuple):
    """What is learned beside the policy."""

    values: PyTree  # networks Q(s, a), stacked along the first axis of every leaf
    log_temperature: Float[Array, ""]  # in units of `reward_scale.value_unit`


class ActionValue(nn.Module):
    """A ReLU network for Q(s, a)."""

    hidden: Sequence[int]

    @nn.compact
    def __call__(self, obs: Float[Array, "... obs"], action: Float[Array, "... action"]) -> Float[Array, "..."]:
        """Returns values for observations and actions on the last axis."""
        x = jnp.concatenate([obs, action], axis=-1)
        for size in self.hidden:
            x = nn.relu(nn.Dense(size)(x))
        return nn.Dense(1, name=LAST)(x)[..., 0]


def sac(
    *,
    learning_rate: float = 3e-4,
    hidden: Sequence[int] = (256, 256),
    replay: int = 300_000,
    replay_ratio: float = 1.0,
    minibatch_size: int = 256,
    minibatch_per_env: float = 0.25,
    target_rate: float = 0.005,
    target_entropy: float | None = None,
    temperature: float = 1.0,
    asynchronous: bool = False,
) -> Algorithm:
    """Soft actor-critic (SAC), for continuous actions between bounds.

    Two networks Q learn from a replay buffer towards

        r + discount (min Q'(s', a') - alpha log pi(a' | s')),   a' drawn from the policy,

    with slow copies Q'; the policy maximises min Q(s, a) - alpha log pi(a | s). The temperature alpha is learned such
    that the policy keeps a given entropy (Haarnoja et al. 2018, "Soft actor-critic algorithms and applications",
    equations 5, 9 and 18). The policy is `squashed`.

    Args:
      learning_rate: learning rate of Adam.
      hidden: sizes of the hidden layers of each Q network.
      replay: capacity of the replay buffer, environment steps.
      replay_ratio: gradient steps per environment step, rounded in each update to a whole number of at least 1; fewer,
        in proportion, if `minibatch_per_env` makes minibatches larger.
      minibatch_size: environment steps per gradient step.
      minibatch_per_env: minimum size of a minibatch, in steps per environment.
      target_rate: fraction by which the copies Q' move towards Q in each gradient step.
      target_entropy: entropy of the policy, nats, where [-1, 1] is the range of an action; None for minus the number of
        action coordinates.
      temperature: initial temperature, relative to the scale of values.
      asynchronous: whether actors keep collecting while the networks learn. If learning is slower than collecting,
        fewer gradient steps are taken. Runs are then not reproducible bit by bit, and batches that are learned from
        together share their learning metrics.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    spec_string = spec_string_of(sac, locals())
    require_settings(
        learning_rate=learning_rate,
        replay=replay,
        replay_ratio=replay_ratio,
        minibatch_size=minibatch_size,
        minibatch_per_env=minibatch_per_env,
        target_rate=target_rate,
        asynchronous=asynchronous,
    )
    require_positive(temperature=temperature)
    require_sizes(hidden=hidden)
    if target_entropy is not None:
        require_number("a number", lambda value: True, target_entropy=target_entropy)

    def make(spec: Spec) -> Learner:
        require_plain_networks(spec, "sac")
        if is_network(spec.critic):
            raise ValueError("critic: sac has its own value functions; use critic=none")
        if spec.actions.counts:
            raise ValueError("algorithm: sac needs continuous actions, but these are discrete; use dqn, trpo or ppo")
        some_obs, size = jnp.zeros(spec.observation_size), spec.actions.size
        policy, network = spec.policy, ActionValue(tuple(hidden))
        if not isinstance(distribution_of(policy, spec.observations, spec.actions), SquashedGaussian):
            raise ValueError("policy: sac needs squashed actions; use policy=squashed")
        wanted = float(-size if target_entropy is None else target_entropy)
        buffer = replay_for(spec, replay, size)

        def init(for_policy: PRNGKeyArray, for_critic: PRNGKeyArray) -> Params:
            keys = jax.random.split(for_critic, CRITICS)
            values = jax.vmap(lambda key: network.init(key, some_obs, jnp.zeros(size)))(keys)
            return policy.init(for_policy), Critics(values, jnp.log(jnp.float32(temperature)))

        def summary(params: Params, obs: Float[Array, "row obs"], unit: Float[Array, ""]) -> Info:
            of_policy, critics = params
            distribution = cast(SquashedGaussian, policy.apply(of_policy, obs))
            value = jnp.mean(jnp.min(values_of(network, critics.values, obs, distribution.mode()), axis=0))
            return {
                "entropy": jnp.mean(distribution.entropy()),
                "value": unit * value,
                "temperature": unit * jnp.exp(critics.log_temperature),
                **distribution.summary(),
            }

        def in_units(params: Params, target: PyTree, change: Float[Array, ""]) -> tuple[Params, PyTree]:
            of_policy, critics = params
            values, target = last_layer_scaled((critics.values, target), change)
            return (of_policy, Critics(values, critics.log_temperature + jnp.log(change))), target

        loss = soft_loss(policy, network, spec.actions, discount=spec.discount, target_entropy=wanted)
        minibatches = minibatches_for(spec.num_envs, minibatch_size, minibatch_per_env, replay_ratio)
        bellman = Bellman(init, lambda params: params[1].values, buffer.draw, loss, in_units, summary, 2 * size)
        return q_learner(spec, bellman, buffer, minibatches, target_rate=target_rate, asynchronous=asynchronous)

    starts: dict[str, Any] = {"learning_rate": learning_rate, "steps_per_update": STEPS_PER_UPDATE}
    return Algorithm(
        spec_string,
        starts,
        make,
        policy="squashed",
        critic="none",
        num_envs=NUM_ENVS,
        distributions=Distribution,
        refuses_shared="it learns action values",
    )


def values_of(
    network: ActionValue, params: PyTree, obs: Float[Array, "row obs"], action: Float[Array, "row action"]
) -> Float[Array, "critic row"]:
    """Returns the values of all networks."""

    def value(one: PyTree) -> Float[Array, " row"]:
        return cast(Array, network.apply(one, obs, action))

    if not on_cpu():
        return jax.vmap(value)(params)
    # Products with several matrices at once are slower there than one after another.
    return jnp.stack([value(jax.tree.map(lambda leaf, i=i: leaf[i], params)) for i in range(CRITICS)])


def soft_loss(
    policy: Policy, network: ActionValue, actions: ActionSpace, *, discount: float, target_entropy: float
) -> Callable[..., tuple[Float[Array, " row"], Float[Array, " row"]]]:
    """Returns `Bellman.loss`: the sum of three losses, each of which has a gradient in one part of the parameters.

    Args:
      policy: squashed policy.
      network: network for values.
      actions: action space.
      discount: discount factor per step.
      target_entropy: entropy that the temperature maintains, nats.
    """

    def drawn(params: PyTree, obs: Array, noise: Array) -> tuple[Float[Array, "row action"], Float[Array, " row"]]:
        return cast(SquashedGaussian, policy.apply(params, obs)).sample_with_log_prob(noise)

    def loss(
        params: Params, target: PyTree, rows: Transitions, unit: Float[Array, ""], noise: Float[Array, "row noise"]
    ) -> tuple[Float[Array, " row"], Float[Array, " row"]]:
        of_policy, critics = params
        fixed, held = jax.lax.stop_gradient((of_policy, critics))
        temperature = jnp.exp(held.log_temperature)
        of_later, of_now = jnp.split(noise, 2, axis=-1)

        later, log_prob = drawn(fixed, rows.final_obs, of_later)
        ahead = jnp.min(values_of(network, target, rows.final_obs, later), axis=0) - temperature * log_prob
        worth = rows.reward / unit + discount * (1 - rows.terminated) * ahead
        found = values_of(network, critics.values, rows.obs, encoded(rows.action, actions))
        squared = (found - worth) ** 2

        action, log_prob = drawn(of_policy, rows.obs, of_now)
        best = jnp.min(values_of(network, held.values, rows.obs, action), axis=0)
        of_policies = temperature * log_prob - best
        of_temperatures = -critics.log_temperature * (jax.lax.stop_gradient(log_prob) + target_entropy)
        return 0.5 * jnp.sum(squared, axis=0) + of_policies + of_temperatures, jnp.mean(squared, axis=0)

    return loss
