"""Q-learning from a replay buffer: gradient steps on a Bellman error, with a target network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, UInt32

from jaxtrpo.algorithms.actor_critic import no_observations, with_rewards
from jaxtrpo.algorithms.advantages import valid_weight
from jaxtrpo.algorithms.algorithm import Info, Learner, Replaying, Spec
from jaxtrpo.config.checks import (
    require_bool,
    require_not_negative,
    require_positive,
    require_replay_ratio,
    require_share,
    require_whole,
)
from jaxtrpo.critics.reward_scale import value_unit
from jaxtrpo.ops.minibatches import Drawn, gradient_and_sum, over_drawn_minibatches, parts_for
from jaxtrpo.ops.moments import Moments, merge, no_moments, normalize, observation_moments
from jaxtrpo.ops.tree import all_finite, if_finite
from jaxtrpo.parallel.collectives import sum_over_actors
from jaxtrpo.rollout.replay import Replay, Ring, Transitions
from jaxtrpo.rollout.types import Batch, Hyperparameters

NUM_ENVS, STEPS_PER_UPDATE = 16, 256  # by default
Params = tuple[PyTree, PyTree]  # of policy and critic


class QLearnerState(NamedTuple):
    """Learner state, equal on every actor."""

    policy: PyTree  # its mode is the greedy action
    critic: PyTree  # networks beside the policy; () if there are none
    target: PyTree  # target network, from which steps bootstrap: a slow copy
    optimizer: optax.OptState  # for policy and critic parameters as one flat vector
    obs_moments: Moments
    rewards: Moments
    unit: Float[Array, ""]  # of the values that the networks predict, in units of reward; 0 before the first reward
    replay: Ring


class Bellman(NamedTuple):
    """The regression of an algorithm; observations are normalised, values in units of `reward_scale.value_unit`."""

    init: Callable[[PRNGKeyArray, PRNGKeyArray], Params]  # (key for the policy, key for the critic) -> parameters
    copied: Callable[[Params], PyTree]  # the parameters that the target network copies
    # (ring, key, number of rows) -> rows, drawn with replacement
    draw: Callable[[Ring, PRNGKeyArray | UInt32[Array, "2"], int], Transitions]
    # (parameters, target, rows, unit of rewards, noise of each row) -> (loss, squared Bellman error) of each row
    loss: Callable[
        [Params, PyTree, Transitions, Float[Array, ""], Float[Array, "row noise"]],
        tuple[Float[Array, " row"], Float[Array, " row"]],
    ]
    # (parameters, target, old unit over the new one) -> parameters and target that predict the same in the new unit,
    # up to what the networks clip
    in_units: Callable[[Params, PyTree, Float[Array, ""]], tuple[Params, PyTree]]
    # (parameters, normalised observations, unit of rewards) -> metrics
    summary: Callable[[Params, Float[Array, "row obs"], Float[Array, ""]], Info]
    noise_size: int = 0  # standard normal numbers per row that the loss needs


class _Minibatch(NamedTuple):
    """Rows that a gradient step learns from."""

    steps: Transitions  # with an axis of time behind that of the row, if the algorithm draws windows
    noise: Float[Array, "row noise"]
    weight: Float[Array, " row"]  # that of the first step


def require_settings(
    *,
    learning_rate: Any,
    replay: Any,
    replay_ratio: Any,
    minibatch_size: Any,
    minibatch_per_env: Any,
    target_rate: Any,
    asynchronous: Any,
) -> None:
    """Raises ValueError if a setting that all these algorithms have is out of range; the message names it."""
    require_positive(learning_rate=learning_rate)
    require_replay_ratio(replay_ratio=replay_ratio)
    require_whole(1, replay=replay, minibatch_size=minibatch_size)
    require_not_negative(minibatch_per_env=minibatch_per_env)
    require_share(target_rate=target_rate)
    require_bool(asynchronous=asynchronous)


def q_learner(
    spec: Spec, bellman: Bellman, buffer: Replay, minibatches: Drawn, *, target_rate: float, asynchronous: bool
) -> Learner:
    """Builds a learner that takes gradient steps on rows of a replay buffer.

    Args:
      spec: see `Spec`.
      bellman: regression.
      buffer: replay buffer.
      minibatches: minibatches drawn from it.
      target_rate: fraction by which the target network moves in each gradient step.
      asynchronous: whether actors keep collecting while the network learns.
    """
    optimizer = optax.scale_by_adam()

    def init(for_policy: PRNGKeyArray, for_critic: PRNGKeyArray) -> QLearnerState:
        params = bellman.init(for_policy, for_critic)
        memory = optimizer.init(ravel_pytree(params)[0])
        return QLearnerState(
            *params,
            bellman.copied(params),
            memory,
            no_observations(spec),
            no_moments(()),
            unit=jnp.zeros(()),
            replay=buffer.empty(),
        )

    def observe(learner: QLearnerState, batch: Batch) -> QLearnerState:
        weight, moments = valid_weight(batch), learner.obs_moments
        # One reward whose square overflows would leave the unit infinite for good.
        rewards = if_finite(with_rewards(learner.rewards, batch, weight), learner.rewards)
        if spec.normalize_observations:
            seen = observation_moments(batch.steps.obs, weight, sum_over_actors, batch.num_segments)
            moments = merge(moments, seen)
        return learner._replace(obs_moments=moments, rewards=rewards)

    def train(
        learner: QLearnerState, new_steps: Int[Array, ""], hyperparameters: Hyperparameters, key: PRNGKeyArray
    ) -> tuple[QLearnerState, Info]:
        rewards, moments, ring = learner.rewards, learner.obs_moments, learner.replay
        scale = value_unit(rewards)
        number = minibatches.number(new_steps)
        unit = jnp.where(scale > 0, scale, 1.0)
        # A rare reward may multiply the unit, but must not multiply the values learned so far (PopArt, van Hasselt et
        # al. 2016, section 2.1).
        change = jnp.where(learner.unit > 0, learner.unit / unit, 1.0)
        networks, kept = bellman.in_units((learner.policy, learner.critic), learner.target, change)

        def draw(_: Any, key: PRNGKeyArray | UInt32[Array, "2"], number: int) -> _Minibatch:
            noise = jnp.zeros((number, 0))
            if bellman.noise_size:
                key, for_noise = jax.random.split(key)
                noise = jax.random.normal(for_noise, (number, bellman.noise_size))
            steps = bellman.draw(ring, key, number)
            return _Minibatch(steps, noise, steps.weight.reshape(number, -1)[:, 0])

        # As one flat vector, Adam is one operation instead of one per leaf.
        first, unravel = ravel_pytree(networks)
        # In a forward pass through dense layers, each parameter is multiplied once a row.
        parts = parts_for(lambda params: params.size, first, minibatches.size)

        def step(carry, minibatch: _Minibatch):
            params, target, memory, total = carry
            count = jnp.maximum(jnp.sum(minibatch.weight), 1.0)

            def loss(params: Float[Array, " parameter"], rows: _Minibatch) -> tuple[Array, Array]:
                obs, final_obs = (normalize(obs, moments) for obs in (rows.steps.obs, rows.steps.final_obs))
                steps = rows.steps._replace(obs=obs, final_obs=final_obs)
                losses, errors = bellman.loss(unravel(params), target, steps, unit, rows.noise)
                return jnp.sum(rows.weight * losses) / count, jnp.sum(rows.weight * errors) / count

            gradient, error = gradient_and_sum(loss, params, minibatch, parts)
            direction, memory = optimizer.update(gradient, memory)
            params = params - hyperparameters["learning_rate"] * jnp.asarray(direction)
            target = optax.incremental_update(bellman.copied(unravel(params)), target, target_rate)
            return params, target, memory, total + error

        for_draws, for_summary = jax.random.split(key)
        start = first, kept, learner.optimizer, jnp.zeros(())
        params, target, memory, total = over_drawn_minibatches(
            step,
            start,
            draw,
            for_draws,
            number=number.astype(jnp.int32),
            size=minibatches.size,
            at_once=minibatches.at_once,
        )
        of_policy, critic = unravel(params)
        learned = learner._replace(policy=of_policy, critic=critic, target=target, optimizer=memory, unit=scale)
        sound = all_finite((params, target, memory))
        learned = optax.tree.where(sound, learned, learner)
        some = normalize(buffer.draw(ring, for_summary, minibatches.size).obs, moments)
        return learned, {
            "accepted": sound,
            **bellman.summary((learned.policy, learned.critic), some, scale),
            "bellman_error": scale * jnp.sqrt(total / number),  # root mean square, in units of reward
            "gradient_steps": number.astype(jnp.int32),
        }

    def learn(
        learner: QLearnerState, batch: Batch, hyperparameters: Hyperparameters, key: PRNGKeyArray
    ) -> tuple[QLearnerState, Info]:
        return train(observe(learner, batch), batch.num_segments * spec.segment_steps, hyperparameters, key)

    return Learner(init, learn, replaying=Replaying(observe, train) if asynchronous else None, replay=buffer)
