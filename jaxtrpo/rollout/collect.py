"""Rollouts: an actor collects a batch of segments."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, PRNGKeyArray, UInt32

from jaxtrpo.envs.base import Environment, EnvState, action_space, env_keys
from jaxtrpo.envs.fixed_starts import Repeated
from jaxtrpo.ops.moments import normalize
from jaxtrpo.parallel.collectives import max_over_trainings, trainings_are_batched
from jaxtrpo.policies.distributions import to_simulator
from jaxtrpo.policies.networks import Policy
from jaxtrpo.rollout.staggering import TimeLimits, first_time_limits, next_time_limits, whole_time_limits
from jaxtrpo.rollout.types import Acting, ActorState, Batch, Steps

CollectSegments = Callable[[ActorState, Acting, Int[Array, ""]], tuple[ActorState, Batch]]
Carry = tuple[EnvState, Float[Array, " env"], TimeLimits]  # environments, returns so far, time limits


def start_actors(env: Environment, key: PRNGKeyArray | UInt32[Array, "2"], num_envs: int) -> ActorState:
    """Starts all environments of a run; environment i depends only on `key` and i."""
    for_env, for_noise = jax.random.split(key)
    return ActorState(
        env=env.reset(for_env, num_envs),
        noise_key=env_keys(for_noise, num_envs),
        episode_return=jnp.zeros(num_envs),
        time_limits=first_time_limits(num_envs, env.episode_length),
    )


def make_collect(env: Environment, policy: Policy, *, segment_length: int, max_segments: int) -> CollectSegments:
    """Builds the function that collects a batch.

    Args:
      env: environment to step.
      policy: policy that acts, on observations normalised with the learner's moments.
      segment_length: steps of each environment in a segment.
      max_segments: capacity of the batch in segments.

    Returns:
      (actor state, learner state, number of segments) -> (actor state, batch). The number of segments is traced, so one
      compiled function collects batches of any size, in time proportional to their size.
    """
    space = action_space(env)

    def act(learner: Acting, env_state: EnvState, noise: Float[Array, "env noise"]) -> Num[Array, "env action"]:
        obs = normalize(env_state.obs, learner.obs_moments)
        return policy.apply(learner.policy, obs).sample(noise)

    def collect(actor: ActorState, learner: Acting, num_segments: Int[Array, ""]) -> tuple[ActorState, Batch]:
        def one_step(carry: Carry, noise: Array) -> tuple[Carry, Steps]:
            before, episode_return, limits = carry
            with jax.named_scope("policy"):
                action = act(learner, before, noise)
            # `elapsed` = `episode_length` - 1 makes the environment truncate the episode at this step.
            last = before.elapsed + 1 >= limits.limit
            limited = before._replace(elapsed=jnp.where(last, env.episode_length - 1, before.elapsed))
            with jax.named_scope("physics"):
                after = env.step(limited, to_simulator(action, space))
            episode_return = episode_return + after.reward
            done = after.terminated | after.truncated
            survived = after.truncated & ~after.invalid
            full_length = limits.limit == env.episode_length
            step = Steps(
                obs=before.obs,
                action=action,
                reward=after.reward,
                terminated=after.terminated,
                truncated=after.truncated,
                invalid=after.invalid,
                final_obs=after.final_obs,
                elapsed=before.elapsed,
                # Invalid episodes and those with a shortened time limit do not count as complete.
                episode_return=jnp.where(done & full_length & ~after.invalid, episode_return, jnp.nan),
            )
            limits = next_time_limits(limits, survived, done & ~survived, env.episode_length)
            return (after, jnp.where(done, 0.0, episode_return), limits), step

        def one_segment(actor: ActorState) -> tuple[ActorState, Steps]:
            keys = jax.vmap(jax.random.split)(actor.noise_key)
            # Drawn with one axis, because a draw with two takes a second longer to compile.
            flat = jax.vmap(lambda key: policy.draw_noise(key, (segment_length * policy.noise_size,)))(keys[:, 0])
            noise = jnp.moveaxis(flat.reshape(-1, segment_length, policy.noise_size), 0, 1)
            carry = (actor.env, actor.episode_return, actor.time_limits)
            (env_state, episode_return, limits), steps = jax.lax.scan(one_step, carry, noise)
            return ActorState(env_state, keys[:, 1], episode_return, limits), steps

        shapes = jax.eval_shape(one_segment, actor)[1]
        buffers = jax.tree.map(lambda leaf: jnp.zeros((max_segments, *leaf.shape), leaf.dtype), shapes)

        def fill_segment(index: Int[Array, ""], carry: tuple[ActorState, Steps]) -> tuple[ActorState, Steps]:
            before, buffers = carry
            actor, steps = one_segment(before)
            if trainings_are_batched():  # the loop runs as long as the training with most segments needs
                actor = jax.tree.map(lambda new, old: jnp.where(index < num_segments, new, old), actor, before)
            return actor, jax.tree.map(
                lambda buffer, new: jax.lax.dynamic_update_index_in_dim(buffer, new, index, 0), buffers, steps
            )

        actor, steps = jax.lax.fori_loop(0, max_over_trainings(num_segments), fill_segment, (actor, buffers))
        return actor, Batch(steps, num_segments)

    return collect


def whole_episodes(collect: CollectSegments, env: Repeated) -> CollectSegments:
    """Builds the function that collects one whole episode of each environment.

    Args:
      collect: result of `make_collect` for `env`, with batches as long as its episodes.
      env: environment with fixed initial states.

    Returns:
      A function like `collect`. If an episode ends early, the remaining steps of its environment in the batch are
      `invalid`, because they belong to the next episode.
    """

    def collect_whole(actor: ActorState, learner: Acting, num_segments: Int[Array, ""]) -> tuple[ActorState, Batch]:
        restarted = ActorState(
            env=env.again(actor.env),
            noise_key=actor.noise_key,
            episode_return=jnp.zeros_like(actor.episode_return),
            time_limits=whole_time_limits(len(actor.episode_return), env.episode_length),
        )
        actor, batch = collect(restarted, learner, num_segments)
        steps = batch.steps
        done = (steps.terminated | steps.truncated).reshape(-1, steps.reward.shape[-1])
        after_end = jnp.cumsum(done, axis=0) - done > 0
        after_end = after_end.reshape(steps.reward.shape)
        whole = steps._replace(
            invalid=steps.invalid | after_end, episode_return=jnp.where(after_end, jnp.nan, steps.episode_return)
        )
        return actor, batch._replace(steps=whole)

    return collect_whole
