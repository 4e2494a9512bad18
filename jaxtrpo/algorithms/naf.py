"""Normalised advantage functions, NAF (Gu et al. 2016): Q-learning for continuous actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxtrpo.algorithms.actor_critic import no_observations, with_rewards
from jaxtrpo.algorithms.advantages import valid_weight
from jaxtrpo.algorithms.algorithm import Algorithm, Info, Learner, Replaying, Spec, require_plain_networks
from jaxtrpo.config.checks import (
    require_bool,
    require_not_negative,
    require_positive,
    require_replay_ratio,
    require_share,
    require_sizes,
    require_whole,
)
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.critics.reward_scale import value_unit
from jaxtrpo.ops.minibatches import minibatches_for, over_drawn_minibatches
from jaxtrpo.ops.moments import Moments, merge, no_moments, normalize, weighted_moments
from jaxtrpo.ops.tree import all_finite
from jaxtrpo.parallel.collectives import sum_over_actors
from jaxtrpo.policies.distributions import encoded
from jaxtrpo.rollout.replay import Ring, Transitions, make_replay
from jaxtrpo.rollout.types import Batch, Hyperparameters

NUM_ENVS, STEPS_PER_UPDATE = 16, 256
# Bounds of the logarithm of the diagonal of L(s). Where the advantage has no peak, the best fit has zero curvature, and
# a mean with zero curvature gets no gradient and never moves again; the lower bound lets it follow the slope.
LOG_DIAGONAL = -2.0, 5.0


class NAFState(NamedTuple):
    """Learner state, equal on every actor."""

    policy: PyTree  # its mean is the greedy action
    critic: PyTree  # network for V and L
    target: PyTree  # target network: a slow copy of the critic, from which steps bootstrap
    optimizer: optax.OptState  # for policy and critic parameters as one flat vector
    obs_moments: Moments
    rewards: Moments
    replay: Ring


class ValueAndCurvature(nn.Module):
    """Network for V(s) and the lower triangular L(s) of the curvature P = L L^T, with a positive diagonal."""

    hidden: Sequence[int]
    action_size: int

    @nn.compact
    def __call__(self, obs: Float[Array, "... obs"]) -> tuple[Float[Array, "..."], Float[Array, "... action action"]]:
        """Returns V and L for observations on the last axis."""
        x = obs
        for size in self.hidden:
            x = nn.relu(nn.LayerNorm()(nn.Dense(size)(x)))
        n = self.action_size
        out = nn.Dense(1 + n * n)(x)  # outputs above the diagonal are ignored
        square = out[..., 1:].reshape(*out.shape[:-1], n, n)
        diagonal = jnp.exp(jnp.clip(square, *LOG_DIAGONAL)) * jnp.eye(n)
        return out[..., 0], square * jnp.tri(n, k=-1) + diagonal


def quadratic_advantage(
    lower: Float[Array, "... action action"], mean: Float[Array, "... action"], action: Float[Array, "... action"]
) -> Float[Array, "..."]:
    """Computes -1/2 (a - m)^T L L^T (a - m), which is 0 for the best action m (Gu et al. 2016, equation 11)."""
    return -0.5 * jnp.sum(jnp.einsum("...ij,...i->...j", lower, action - mean) ** 2, axis=-1)


def naf(
    *,
    learning_rate: float = 1e-3,
    hidden: Sequence[int] = (128, 128),
    replay: int = 200_000,
    replay_ratio: float = 0.5,
    minibatch_size: int = 128,
    minibatch_per_env: float = 0.25,
    target_rate: float = 0.02,
    asynchronous: bool = False,
) -> Algorithm:
    """Normalised advantage functions (NAF): Q-learning from a replay buffer, for continuous actions.

        Q(s, a) = V(s) - 1/2 (a - m(s))^T P(s) (a - m(s))

    is largest at the mean m(s) of the policy, where it equals V(s). The regression target of a step is therefore
    reward + discount V'(s'), with the target network V' a slow copy of V. Exploration noise is the policy's own, whose
    standard deviation is not learned but set by, for example, `--policy "mlp(initial_log_std=-1)"`. Actions are clipped
    to the action space, as in the simulator; means outside of it are penalised, because Q cannot tell them from the
    bounds.

    Args:
      learning_rate: learning rate of Adam.
      hidden: sizes of the hidden layers of the network for the value V and the curvature P.
      replay: capacity of the replay buffer, environment steps.
      replay_ratio: gradient steps per environment step; where `minibatch_per_env` makes minibatches larger, there are
        as many fewer of them.
      minibatch_size: environment steps per gradient step.
      minibatch_per_env: least number of them per environment, so that thousands of environments do not mean thousands
        of small gradient steps, one after another.
      target_rate: fraction by which the target network V' moves towards V in each gradient step.
      asynchronous: whether actors keep collecting while the network learns (Gu, Holly et al. 2017). If learning is
        slower than collecting, it takes fewer gradient steps. Runs are then not reproducible bit by bit, and batches
        learned from together share their learning metrics.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    spec_string = spec_string_of(naf, locals())
    require_positive(learning_rate=learning_rate)
    require_replay_ratio(replay_ratio=replay_ratio)
    require_sizes(hidden=hidden)
    require_whole(1, replay=replay, minibatch_size=minibatch_size)
    require_not_negative(minibatch_per_env=minibatch_per_env)
    require_share(target_rate=target_rate)
    require_bool(asynchronous=asynchronous)
    optimizer = optax.scale_by_adam()

    def make(spec: Spec) -> Learner:
        require_plain_networks(spec, "naf")
        key = jax.random.PRNGKey(0)
        if jax.tree.leaves(jax.eval_shape(spec.critic.init, key)):
            raise ValueError("critic: naf has its own value function; use critic=none")
        policy, some_obs = spec.policy, jnp.zeros(spec.observation_size)
        action = jax.eval_shape(lambda key: policy.apply(policy.init(key), some_obs).mode(), key)
        if not jnp.issubdtype(action.dtype, jnp.floating):
            raise ValueError("algorithm: naf needs continuous actions, but these are discrete; use trpo or ppo")
        minibatches = minibatches_for(spec.num_envs, minibatch_size, minibatch_per_env, replay_ratio)
        network = ValueAndCurvature(tuple(hidden), action.shape[-1])
        apply = cast(Callable[[PyTree, Array], tuple[Array, Array]], network.apply)
        buffer = make_replay(
            replay,
            segment_steps=spec.segment_steps,
            segment_length=spec.segment_length,
            observation_size=spec.observation_size,
            action_size=action.shape[-1],
        )

        def init(for_policy: PRNGKeyArray, for_critic: PRNGKeyArray) -> NAFState:
            params, critic = policy.init(for_policy), network.init(for_critic, some_obs)
            memory = optimizer.init(ravel_pytree((params, critic))[0])
            return NAFState(params, critic, critic, memory, no_observations(spec), no_moments(()), buffer.empty())

        def loss_of(moments: Moments, scale: Float[Array, ""]) -> Callable[[PyTree, PyTree, Transitions], tuple]:
            def loss(params: PyTree, target: PyTree, rows: Transitions) -> tuple[Float[Array, ""], Float[Array, ""]]:
                """Returns the mean squared Bellman error with and without the penalty on means outside the bounds."""
                of_policy, critic = params
                obs = normalize(rows.obs, moments)
                later, _ = apply(target, normalize(rows.final_obs, moments))
                worth = rows.reward / scale + spec.discount * (1 - rows.terminated) * later
                value, lower = apply(critic, obs)
                mean = policy.apply(of_policy, obs).mode()
                inside = encoded(mean, spec.actions)
                found = value + quadratic_advantage(lower, inside, encoded(rows.action, spec.actions))
                count = jnp.maximum(jnp.sum(rows.weight), 1.0)
                error = jnp.sum(rows.weight * (found - worth) ** 2) / count
                beyond = jnp.sum(rows.weight * jnp.sum((mean - inside) ** 2, axis=-1)) / count
                return error + beyond, error

            return jax.value_and_grad(loss, has_aux=True)

        def observe(learner: NAFState, batch: Batch) -> NAFState:
            weight, moments = valid_weight(batch), learner.obs_moments
            rewards = with_rewards(learner.rewards, batch, weight)
            if spec.normalize_observations:
                seen = weighted_moments(batch.steps.obs, weight, sum_over_actors, batch.num_segments)
                moments = merge(moments, seen)
            return learner._replace(obs_moments=moments, rewards=rewards)

        def train(
            learner: NAFState, new_steps: Int[Array, ""], hyperparameters: Hyperparameters, key: PRNGKeyArray
        ) -> tuple[NAFState, Info]:
            rewards, moments, ring = learner.rewards, learner.obs_moments, learner.replay
            scale = value_unit(rewards)
            number = minibatches.number(new_steps)
            gradient_of = loss_of(moments, jnp.where(scale > 0, scale, 1.0))
            # As one flat vector, Adam is one operation instead of one per leaf.
            first, unravel = ravel_pytree((learner.policy, learner.critic))

            def step(carry, rows: Transitions):
                params, target, memory, total = carry
                (_, error), gradient = gradient_of(unravel(params), target, rows)
                direction, memory = optimizer.update(ravel_pytree(gradient)[0], memory)
                params = params - hyperparameters["learning_rate"] * jnp.asarray(direction)
                target = optax.incremental_update(unravel(params)[1], target, target_rate)
                return params, target, memory, total + error

            for_draws, for_summary = jax.random.split(key)
            start = first, learner.target, learner.optimizer, jnp.zeros(())
            params, target, memory, total = over_drawn_minibatches(
                step,
                start,
                lambda _, key, number: buffer.draw(ring, key, number),
                for_draws,
                number=number.astype(jnp.int32),
                size=minibatches.size,
                at_once=minibatches.at_once,
            )
            of_policy, critic = unravel(params)
            learned = learner._replace(policy=of_policy, critic=critic, target=target, optimizer=memory)
            learned = optax.tree.where(all_finite((params, target)), learned, learner)
            some = normalize(buffer.draw(ring, for_summary, minibatches.size).obs, moments)
            return learned, {
                **policy.apply(learned.policy, some).summary(),
                "bellman_error": scale * jnp.sqrt(total / number),  # root mean square, in units of reward
                "gradient_steps": number.astype(jnp.int32),
            }

        def learn(
            learner: NAFState, batch: Batch, hyperparameters: Hyperparameters, key: PRNGKeyArray
        ) -> tuple[NAFState, Info]:
            return train(observe(learner, batch), batch.num_segments * spec.segment_steps, hyperparameters, key)

        return Learner(init, learn, replaying=Replaying(observe, train) if asynchronous else None, replay=buffer)

    starts = {"learning_rate": learning_rate, "steps_per_update": STEPS_PER_UPDATE}
    return Algorithm(
        spec_string, starts, make, critic="none", num_envs=NUM_ENVS, refuses_shared="it learns action values"
    )
