"""One update of a run: the functions that are compiled, mapped over actors, and put together here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from jaxtrpo.actors import Actors, first, join_envs
from jaxtrpo.adapt import Rule
from jaxtrpo.algorithms.trpo import make_learn
from jaxtrpo.algorithms.trust_region import no_path
from jaxtrpo.collect import make_collect, start_actors
from jaxtrpo.config import Config, Sizes
from jaxtrpo.critics.critic import Critic
from jaxtrpo.critics.linear import linear_critic
from jaxtrpo.critics.mlp import mlp_critic
from jaxtrpo.envs.base import Environment
from jaxtrpo.episodes import no_episodes, remember
from jaxtrpo.losses import Surrogate
from jaxtrpo.ops.keys import numbered_key
from jaxtrpo.ops.moments import no_moments
from jaxtrpo.ops.running_mean import no_mean
from jaxtrpo.policies.networks import Policy, gaussian_policy
from jaxtrpo.types import Batch, Hyperparameters, LearnerState, TrainState

# What `learn` measures, in this order; they become columns of metrics.csv.
METRIC_NAMES = (
    "steps_per_update", "max_kl", "episodes", "mean_return", "return_100", "kl", "entropy", "policy_std",
    "explained_variance", "advantage_std", "improvement", "line_search_steps", "accepted", "cg_iterations",
    "cg_residual", "gradient_norm", "slope", "signal", "invalid_steps",
)  # fmt: skip


Collect = Callable[[TrainState], tuple[TrainState, Batch]]
Learn = Callable[[TrainState, Batch], tuple[TrainState, Float[Array, "actor metric"]]]


class Lowered(NamedTuple):
    """The two halves of an update, not yet compiled. Both may be compiled at the same time, on two threads."""

    compile_collect: Callable[[], Collect]
    compile_learn: Callable[[], Learn]


class Update(NamedTuple):
    """The parts of a run. Leaves of states, batches and metrics have a leading axis of actors."""

    policy: Policy
    start: Callable[[int], TrainState]  # seed -> first state
    shapes: Callable[[], TrainState]  # of a gathered state
    place: Callable[[TrainState], TrainState]  # undoes `gather`
    lower: Callable[[TrainState], Lowered]  # for states like this one


def make_update(
    env: Environment, config: Config, sizes: Sizes, actors: Actors, surrogate: Surrogate, rule: Rule
) -> Update:
    """Puts policy, critic, collecting, learning and adapting together. Nothing is compiled before it is called."""
    policy = gaussian_policy(
        env.observation_size, env.action_size, hidden=config.policy_hidden, initial_log_std=config.initial_log_std
    )
    critic = make_critic(env, config)
    collect_batch = make_collect(env, policy, segment_length=config.segment_length, max_segments=sizes.max_segments)
    learn_batch = make_learn(
        policy,
        critic,
        discount=config.discount,
        gae_lambda=1.0 if config.advantages == "monte_carlo" else config.gae_lambda,
        advantage_memory=config.advantage_memory,
        surrogate=surrogate,
        normalize_observations=config.normalize_observations,
        **policy_step_settings(config),
    )

    def first_state(key: UInt32[Array, "2"]) -> TrainState:
        for_env, for_policy, for_critic, for_run = jax.random.split(key, 4)
        hyperparameters = Hyperparameters(jnp.float32(config.max_kl), jnp.int32(config.steps_per_update))
        params = policy.init(for_policy)
        return TrainState(
            actors=start_actors(env, for_env, sizes.num_envs),
            learner=LearnerState(
                policy=params,
                critic=critic.init(for_critic),
                obs_moments=no_moments((env.observation_size,)),
                path=no_path(params),
                advantage_variance=no_mean(),
            ),
            episodes=no_episodes(),
            hyperparameters=hyperparameters,
            adapt=rule.init(hyperparameters),
            key=for_run,
            segments=jnp.int32(0),
        )

    def start(seed: int) -> TrainState:
        # It runs once: optimising it would take longer than it saves.
        run_once = jax.jit(first_state, compiler_options={"xla_backend_optimization_level": "0"})
        return place(run_once(jax.random.PRNGKey(seed)))

    def shapes() -> TrainState:
        return jax.eval_shape(first_state, jax.random.PRNGKey(0))

    def place(state: TrainState) -> TrainState:
        shared = actors.replicate(state._replace(actors=None))
        return shared._replace(actors=actors.split_envs(state.actors))

    def collect(actor, learner, hyperparameters):
        return collect_batch(actor, learner, _segments(hyperparameters, sizes))

    def learn(state: TrainState, batch: Batch) -> tuple[TrainState, Float[Array, " metric"]]:
        hyperparameters = state.hyperparameters
        key = numbered_key(state.key, state.segments)
        learner, info = learn_batch(state.learner, batch, hyperparameters.max_kl, key)
        episodes, finished = remember(state.episodes, batch)
        measured = {
            "steps_per_update": batch.num_segments * sizes.segment_steps,
            "max_kl": hyperparameters.max_kl,
            "explained_variance": info.explained_variance,
            "policy_std": info.policy_std,
            "advantage_std": info.advantage_std,
            **info.step._asdict(),
            **finished._asdict(),
        }
        adapt, hyperparameters = rule.update(state.adapt, hyperparameters, measured)
        state = state._replace(
            learner=learner,
            episodes=episodes,
            hyperparameters=hyperparameters,
            adapt=adapt,
            segments=state.segments + batch.num_segments,
        )
        return state, jnp.stack([jnp.asarray(measured[name], jnp.float32) for name in METRIC_NAMES])

    mapped_collect = actors.map(collect)
    mapped_learn = actors.map(learn)

    def lower(state: TrainState) -> Lowered:
        traced = mapped_collect.lower(state.actors, state.learner, state.hyperparameters)
        _, batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), traced.out_info)

        def compile_collect() -> Collect:
            compiled = traced.compile()

            def collect_all(state: TrainState) -> tuple[TrainState, Batch]:
                actor, batch = compiled(state.actors, state.learner, state.hyperparameters)
                return state._replace(actors=actor), batch

            return collect_all

        def compile_learn() -> Learn:
            compiled = mapped_learn.lower(state._replace(actors=None), batch).compile()

            def learn_all(state: TrainState, batch: Batch) -> tuple[TrainState, Float[Array, "actor metric"]]:
                learned, measured = compiled(state._replace(actors=None), batch)
                return learned._replace(actors=state.actors), measured

            return learn_all

        return Lowered(compile_collect, compile_learn)

    return Update(policy, start, shapes, place, lower)


def gather(state: TrainState) -> TrainState:
    """A copy on the host, the same however many actors there are: what they share once, and all environments."""
    return first(state._replace(actors=None))._replace(actors=join_envs(state.actors))


def _segments(hyperparameters: Hyperparameters, sizes: Sizes) -> Int[Array, ""]:
    return jnp.clip(hyperparameters.steps_per_update // sizes.segment_steps, 1, sizes.max_segments)


def policy_step_settings(config: Config) -> dict[str, Any]:
    """What `make_policy_step` wants to know."""
    names = ("fisher_samples", "cg_iterations", "cg_damping", "line_search_shrink", "line_search_steps")
    return {name: getattr(config, name) for name in names}


def make_critic(env: Environment, config: Config) -> Critic:
    """The critic that the settings ask for."""
    if config.critic == "linear":
        return linear_critic(env.observation_size)
    return mlp_critic(
        env.observation_size,
        hidden=config.critic_hidden,
        epochs=config.critic_epochs,
        minibatch_size=config.critic_minibatch_size,
        learning_rate=config.critic_learning_rate,
        normalize_returns=config.normalize_returns,
    )
