"""Rollouts: an actor collects a batch of segments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, UInt32

from jaxtrpo.envs.abilities import info_of, observation_space
from jaxtrpo.envs.base import Environment, EnvState, action_space, env_keys
from jaxtrpo.envs.fixed_starts import Repeated
from jaxtrpo.ops.moments import normalize
from jaxtrpo.parallel.collectives import max_over_trainings, trainings_are_batched
from jaxtrpo.policies.action_units import to_simulator
from jaxtrpo.policies.masking import input_of
from jaxtrpo.policies.networks import Policy
from jaxtrpo.policies.recurrence import Recurrence, initial_carry, num_stretches
from jaxtrpo.rollout.ends import ends_of, slots_for
from jaxtrpo.rollout.noise import correlated, first_noise
from jaxtrpo.rollout.staggering import TimeLimits, first_time_limits, next_time_limits, whole_time_limits
from jaxtrpo.rollout.types import Acting, ActorState, Batch, Carries, Ends, Steps

CollectSegments = Callable[[ActorState, Acting, Int[Array, ""]], tuple[ActorState, Batch]]
# Environments, returns so far, time limits, and what networks with memory carry.
Carry = tuple[EnvState, Float[Array, " env"], TimeLimits, Carries]
Recurrences = tuple[Recurrence | None, Recurrence | None]  # of policy and critic; None for one without memory


def start_actors(
    env: Environment,
    key: PRNGKeyArray | UInt32[Array, "2"],
    num_envs: int,
    recurrences: Recurrences = (None, None),
    noise_size: int | None = None,
) -> ActorState:
    """Starts all environments of a run; environment i depends only on `key` and i.

    Args:
      env: environment to start.
      key: PRNG key.
      num_envs: environments of all actors.
      recurrences: of policy and critic.
      noise_size: random numbers per action, if the noise of successive steps is correlated.
    """
    for_env, for_noise = jax.random.split(key)
    noise_key = env_keys(for_noise, num_envs)
    return ActorState(
        env=env.reset(for_env, num_envs),
        noise_key=noise_key,
        episode_return=jnp.zeros(num_envs),
        time_limits=first_time_limits(num_envs, env.episode_length),
        carries=Carries(*(initial_carry(each, num_envs) for each in recurrences)),
        noise=() if noise_size is None else first_noise(noise_key, noise_size),
    )


def make_collect(
    env: Environment,
    policy: Policy,
    *,
    segment_length: int,
    max_segments: int,
    critic_recurrence: Recurrence | None = None,
    noise_correlation: float = 0.0,
) -> CollectSegments:
    """Builds the function that collects a batch.

    Args:
      env: environment to step.
      policy: policy that acts, on observations normalised with the learner's moments.
      segment_length: steps of each environment in a segment.
      max_segments: capacity of the batch in segments.
      critic_recurrence: of a critic that has memory; it observes what the policy observes.
      noise_correlation: of the noise of successive steps; other than 0 only for policies with normal noise.

    Returns:
      (actor state, learner state, number of segments) -> (actor state, batch). The number of segments is traced, so one
      compiled function collects batches of any size, in time proportional to their size.
    """
    space = action_space(env)
    recurrences: Recurrences = policy.recurrence, critic_recurrence
    slots = 0 if observation_space(env).is_flat else slots_for(segment_length, env.episode_length)

    def no_starts(recurrence: Recurrence | None, carry: PyTree) -> PyTree:
        """Returns a buffer for the carries at the starts of stretches; its last row is for those that do not count."""
        if recurrence is None:
            return ()
        rows = num_stretches(max_segments * segment_length, recurrence.bptt_steps) + 1
        return jax.tree.map(lambda leaf: jnp.zeros((rows, *leaf.shape), leaf.dtype), carry)

    def keep_starts(index: Int[Array, ""], recurrence: Recurrence | None, starts: PyTree, carries: PyTree) -> PyTree:
        """Stores the carries of a segment's steps at which stretches start."""
        if recurrence is None:
            return ()
        every, begun = recurrence.bptt_steps, index * segment_length
        for slot in range(num_stretches(segment_length, every)):
            number = num_stretches(begun, every) + slot
            step = number * every - begun
            row = jnp.where(step < segment_length, number, -1)
            starts = jax.tree.map(
                lambda buffer, new, row=row, step=step: buffer.at[row].set(new[step]), starts, carries
            )
        return starts

    def act(
        learner: Any, env_state: EnvState, carries: Carries, noise: Float[Array, "env noise"]
    ) -> tuple[Array, Carries]:
        """Returns actions in policy units, and what is carried to the next step."""
        obs, first = normalize(env_state.obs, learner.obs_moments), env_state.elapsed == 0
        inputs = input_of(policy, obs, env_state.mask)
        distribution, of_policy = policy.step(learner.policy, carries.policy, inputs, first)
        of_critic = ()
        if critic_recurrence is not None:
            _, of_critic = critic_recurrence.step(learner.critic, carries.critic, obs, first)
        return distribution.sample(noise), Carries(of_policy, of_critic)

    def collect(actor: ActorState, learner: Acting, num_segments: Int[Array, ""]) -> tuple[ActorState, Batch]:
        def one_step(carry: Carry, noise: Array) -> tuple[Carry, tuple[Steps, Carries]]:
            before, episode_return, limits, carries = carry
            with jax.named_scope("policy"):
                action, carries_after = act(learner, before, carries, noise)
            # `elapsed` = `episode_length` - 1 makes the environment truncate the episode at this step.
            last = before.elapsed + 1 >= limits.limit
            limited = before._replace(elapsed=jnp.where(last, env.episode_length - 1, before.elapsed))
            with jax.named_scope("physics"):
                after = env.step(limited, to_simulator(action, space))
            episode_return = episode_return + after.reward
            done = after.terminated | after.truncated
            survived = after.truncated & ~after.invalid
            full_length = limits.limit == env.episode_length
            # Invalid episodes and those with a shortened time limit do not count as complete.
            complete = done & full_length & ~after.invalid
            info = {name: jnp.where(complete, value, jnp.nan) for name, value in info_of(env, after).items()}
            step = Steps(
                obs=before.obs,
                action=action,
                reward=after.reward,
                terminated=after.terminated,
                truncated=after.truncated,
                invalid=after.invalid,
                final_obs=after.final_obs,
                elapsed=before.elapsed,
                episode_return=jnp.where(complete, episode_return, jnp.nan),
                info=info or None,
                mask=before.mask,
            )
            limits = next_time_limits(limits, survived, done & ~survived, env.episode_length)
            return (after, jnp.where(done, 0.0, episode_return), limits, carries_after), (step, carries)

        def one_segment(actor: ActorState) -> tuple[ActorState, tuple[tuple[Steps, PyTree], Carries]]:
            keys = jax.vmap(jax.random.split)(actor.noise_key)
            # Drawn with one axis, because a draw with two takes a second longer to compile.
            flat = jax.vmap(lambda key: policy.draw_noise(key, (segment_length * policy.noise_size,)))(keys[:, 0])
            noise, last = jnp.moveaxis(flat.reshape(-1, segment_length, policy.noise_size), 0, 1), actor.noise
            if noise_correlation:
                noise, last = correlated(noise, cast(Array, last), noise_correlation)
            carry = (actor.env, actor.episode_return, actor.time_limits, actor.carries)
            (env_state, episode_return, limits, carries), (steps, made) = jax.lax.scan(one_step, carry, noise)
            filled = ends_of(steps, slots) if slots else (steps, ())
            return ActorState(env_state, keys[:, 1], episode_return, limits, carries, last), (filled, made)

        shapes = jax.eval_shape(one_segment, actor)[1][0]
        buffers = jax.tree.map(lambda leaf: jnp.zeros((max_segments, *leaf.shape), leaf.dtype), shapes)
        starts = Carries(*(no_starts(*each) for each in zip(recurrences, actor.carries, strict=True)))

        def fill_segment(
            index: Int[Array, ""], carry: tuple[ActorState, tuple[Steps, PyTree], Carries]
        ) -> tuple[ActorState, tuple[Steps, PyTree], Carries]:
            before, buffers, starts = carry
            actor, (filled, carries) = one_segment(before)
            if trainings_are_batched():  # the loop runs as long as the training with most segments needs
                actor = jax.tree.map(lambda new, old: jnp.where(index < num_segments, new, old), actor, before)
            buffers = jax.tree.map(
                lambda buffer, new: jax.lax.dynamic_update_index_in_dim(buffer, new, index, 0), buffers, filled
            )
            return actor, buffers, Carries(*map(functools.partial(keep_starts, index), recurrences, starts, carries))

        number = max_over_trainings(num_segments)
        actor, (steps, kept), starts = jax.lax.fori_loop(0, number, fill_segment, (actor, buffers, starts))
        ends = Ends(*kept, after=actor.env.obs) if slots else ()
        return actor, Batch(steps, num_segments, jax.tree.map(lambda leaf: leaf[:-1], starts), ends)

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
        restarted = actor._replace(
            env=env.again(actor.env),
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
