"""One actor's rollout: policy x environment -> Batch."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, PRNGKeyArray, UInt32

from jaxtrpo.envs.base import Environment, EnvState, action_space, env_keys
from jaxtrpo.envs.fixed_starts import Repeated
from jaxtrpo.ops.moments import normalize
from jaxtrpo.parallel.collectives import are_many, most_of_trainings
from jaxtrpo.policies.distributions import to_simulator
from jaxtrpo.policies.networks import Policy
from jaxtrpo.rollout.staggering import TimeLimits, first_time_limits, next_time_limits, whole_time_limits
from jaxtrpo.rollout.types import Acting, ActorState, Batch, Steps

Collect = Callable[[ActorState, Acting, Int[Array, ""]], tuple[ActorState, Batch]]
Carry = tuple[EnvState, Float[Array, " env"], TimeLimits]  # from step to step; the second is the returns so far


def start_actors(env: Environment, key: PRNGKeyArray | UInt32[Array, "2"], num_envs: int) -> ActorState:
    """All environments of a run at the beginning; environment i does not depend on who will step it."""
    for_env, for_noise = jax.random.split(key)
    return ActorState(
        env=env.reset(for_env, num_envs),
        noise_key=env_keys(for_noise, num_envs),
        episode_return=jnp.zeros(num_envs),
        time_limits=first_time_limits(num_envs, env.episode_length),
    )


def make_collect(env: Environment, policy: Policy, *, segment_length: int, max_segments: int) -> Collect:
    """Builds the rollout.

    Args:
      env: what to act in.
      policy: who acts; sees observations normalised with the learner's moments.
      segment_length: steps of every environment in a segment.
      max_segments: segments that the batch has room for.

    Returns:
      (actor state, learner state, number of segments) -> (actor state, batch). The number of segments is traced: the
      same compiled function collects batches of every size, and takes time in proportion.
    """
    space = action_space(env)

    def act(learner: Acting, env_state: EnvState, noise: Float[Array, "env noise"]) -> Num[Array, "env action"]:
        obs = normalize(env_state.obs, learner.obs_moments)
        return policy.apply(learner.policy, obs).sample(noise)

    def collect(actor: ActorState, learner: Acting, num_segments: Int[Array, ""]) -> tuple[ActorState, Batch]:
        def one_step(carry: Carry, noise: Array) -> tuple[Carry, Steps]:
            before, episode_return, limits = carry
            action = act(learner, before, noise)
            # The environment ends an episode with its last step, so it is told when that is.
            last = before.elapsed + 1 >= limits.limit
            ending = before._replace(elapsed=jnp.where(last, env.episode_length - 1, before.elapsed))
            after = env.step(ending, to_simulator(action, space))
            episode_return = episode_return + after.reward
            done = after.terminated | after.truncated
            survived = after.truncated & ~after.invalid
            whole = limits.limit == env.episode_length
            step = Steps(
                obs=before.obs,
                action=action,
                reward=after.reward,
                terminated=after.terminated,
                truncated=after.truncated,
                invalid=after.invalid,
                final_obs=after.final_obs,
                elapsed=before.elapsed,
                # An episode that broke, or was not given the whole time, is no complete episode.
                episode_return=jnp.where(done & whole & ~after.invalid, episode_return, jnp.nan),
            )
            limits = next_time_limits(limits, survived, done & ~survived, env.episode_length)
            return (after, jnp.where(done, 0.0, episode_return), limits), step

        def one_segment(actor: ActorState) -> tuple[ActorState, Steps]:
            keys = jax.vmap(jax.random.split)(actor.noise_key)
            # Of one axis: a draw of two takes a second longer to compile.
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
            if are_many():  # others may need more segments; what is beyond `num_segments` is no data
                actor = jax.tree.map(lambda new, old: jnp.where(index < num_segments, new, old), actor, before)
            return actor, jax.tree.map(
                lambda buffer, new: jax.lax.dynamic_update_index_in_dim(buffer, new, index, 0), buffers, steps
            )

        actor, steps = jax.lax.fori_loop(0, most_of_trainings(num_segments), fill_segment, (actor, buffers))
        return actor, Batch(steps, num_segments)

    return collect


def whole_episodes(collect: Collect, env: Repeated) -> Collect:
    """Batches that are one episode of every environment, from its beginning.

    Args:
      collect: as `make_collect` builds it for this environment, with batches as long as its episodes.
      env: begins its episodes in the same states, again and again.

    Returns:
      As `collect`. Where an episode ends early, the steps that follow it in the batch are `invalid`: they are of
      another that only began.
    """

    def collect_whole(actor: ActorState, learner: Acting, num_segments: Int[Array, ""]) -> tuple[ActorState, Batch]:
        begun = ActorState(
            env=env.again(actor.env),
            noise_key=actor.noise_key,
            episode_return=jnp.zeros_like(actor.episode_return),
            time_limits=whole_time_limits(len(actor.episode_return), env.episode_length),
        )
        actor, batch = collect(begun, learner, num_segments)
        steps = batch.steps
        done = (steps.terminated | steps.truncated).reshape(-1, steps.reward.shape[-1])
        ended = jnp.cumsum(done, axis=0) - done > 0
        beyond = ended.reshape(steps.reward.shape)
        whole = steps._replace(
            invalid=steps.invalid | beyond, episode_return=jnp.where(beyond, jnp.nan, steps.episode_return)
        )
        return actor, batch._replace(steps=whole)

    return collect_whole
