"""One update of a run: the functions that are compiled, mapped over actors, and put together here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from jaxtrpo.adapt import Rule, require_settings
from jaxtrpo.algorithms.algorithm import Algorithm, Learner, Spec
from jaxtrpo.algorithms.surrogates import Surrogate
from jaxtrpo.config import Sizes
from jaxtrpo.critics.critic import CriticMaker
from jaxtrpo.envs.base import Environment, action_space, require_working
from jaxtrpo.envs.fixed_starts import Repeated
from jaxtrpo.ops.keys import key_for
from jaxtrpo.parallel.actors import Actors, Trainings, first, join_envs
from jaxtrpo.policies.networks import Policy, PolicyMaker
from jaxtrpo.rollout.collect import CollectSegments, make_collect, start_actors, whole_episodes
from jaxtrpo.rollout.replay import Insert, compile_insert, inserted, without_replay
from jaxtrpo.rollout.types import Acting, ActorState, Batch, Hyperparameters, TrainState
from jaxtrpo.training.metrics import Column, columns_of, no_episodes, report

Collect = Callable[[TrainState], tuple[TrainState, Batch]]
Learn = Callable[[TrainState, Batch], tuple[TrainState, Float[Array, "actor metric"]]]


class Parts(NamedTuple):
    """What a run is made of."""

    algorithm: Algorithm
    policy: PolicyMaker
    critic: CriticMaker
    rule: Rule
    surrogate: Surrogate | None  # what the policy maximises, if not what the algorithm would
    discount: float
    normalize_observations: bool


Several = Callable[[TrainState], tuple[TrainState, Float[Array, "actor update metric"]]]


class Lowered(NamedTuple):
    """The parts of an update, not yet compiled. All may be compiled at the same time, on threads."""

    compile_collect: Callable[[], Collect]
    # What batches go through before `learn`: into the replay buffer. None without one.
    compile_insert: Callable[[], Insert | None]
    compile_learn: Callable[[], tuple[Learn, tuple[Column, ...]]]  # and what it measures, in order


class Update(NamedTuple):
    """The parts of a run. Leaves of states, batches and metrics have a leading axis of actors."""

    policy: Policy
    learner: Learner
    hyperparameters: Callable[[], Hyperparameters]  # that training starts with
    start: Callable[[int], TrainState]  # seed -> first state
    # The same of a key and settings to start with, neither compiled nor dealt out.
    first_state: Callable[[UInt32[Array, "2"], Hyperparameters], TrainState]
    shapes: Callable[[], TrainState]  # of a gathered state
    place: Callable[[TrainState], TrainState]  # undoes `gather`
    restart: Callable[[TrainState], TrainState]  # a gathered state with new episodes in all environments
    lower: Callable[[TrainState], Lowered]  # for states like this one
    # Whole updates, as one program; those after the end of the run are not made, and their metrics are NaN.
    compile_several: Callable[[TrainState], tuple[Several, tuple[Column, ...]]]
    at_once: int  # how many updates that program makes
    # All that is compiled for one training, as text: two trainings with the same differ in data alone.
    program: Callable[[], str]
    # One actor's part, not mapped: (actor state, learner state, hyperparameters) -> (actor state, batch).
    collect: Callable[[ActorState, Acting, Hyperparameters], tuple[ActorState, Batch]]
    rule: Rule
    sizes: Sizes


def make_update(
    env: Environment, parts: Parts, sizes: Sizes, actors: Actors, total_steps: int, trainings: Trainings | None = None
) -> Update:
    """Puts policy, critic, collecting, learning and adapting together. Nothing is compiled before it is called.

    Args:
      env: where.
      parts: what learns.
      sizes: of batches.
      actors: who collect and learn.
      total_steps: of the run, environment steps.
      trainings: of which this is one, if several are one program; `actors` is then one.

    Raises:
      ValueError: parts do not fit each other or the environment; one sentence.
    """

    def mapped(function: Callable, *, in_turn: bool = False, donate: Sequence[int] = ()) -> jax.stages.Wrapped:
        if trainings is None:
            return actors.map(function, donate=donate)
        return trainings.map(function, donate=donate, in_turn=in_turn)

    algorithm, rule = parts.algorithm, parts.rule
    require_settings(rule, algorithm.hyperparameters, algorithm.words)
    policy = parts.policy.make(env.observation_size, action_space(env))
    spec = Spec(
        observation_size=env.observation_size,
        policy=policy,
        critic=parts.critic.make(env.observation_size),
        discount=parts.discount,
        surrogate=parts.surrogate,
        normalize_observations=parts.normalize_observations,
        steps_per_update=int(algorithm.hyperparameters["steps_per_update"]),
        segment_steps=sizes.segment_steps,
        segment_length=sizes.segment_length,
        actions=action_space(env),
    )
    learner = algorithm.make(spec)
    if learner.asynchronous is not None and spec.steps_per_update < 2 * actors.count:
        # Advantages are relative to their mean: that of a single step is 0, and nobody would learn.
        raise ValueError(
            f"steps_per_update={spec.steps_per_update} must be at least {2 * actors.count}, two for each of the "
            f"{actors.count} actors that do not wait for each other"
        )
    where, collect_batch = _collecting(env, policy, algorithm, sizes)
    total_segments = segments_of_run(total_steps, sizes, 1 if learner.waits else actors.count)

    def first_state(key: UInt32[Array, "2"], hyperparameters: Hyperparameters) -> TrainState:
        for_env, for_policy, for_critic, for_run = jax.random.split(key, 4)
        return TrainState(
            actors=start_actors(where, for_env, sizes.num_envs),
            learner=learner.init(for_policy, for_critic),
            episodes=no_episodes(),
            hyperparameters=hyperparameters,
            adapt=rule.init(hyperparameters),
            key=for_run,
            segments=jnp.int32(0),
            total_segments=jnp.int32(total_segments),
        )

    def hyperparameters() -> Hyperparameters:
        return first_hyperparameters(algorithm)

    def usual_first_state(key: UInt32[Array, "2"]) -> TrainState:
        return first_state(key, hyperparameters())

    def start(seed: int) -> TrainState:
        # It runs once: optimising it would take longer than it saves.
        run_once = jax.jit(usual_first_state, compiler_options={"xla_backend_optimization_level": "0"})
        with actors.on_first():
            begun = jax.block_until_ready(run_once(jax.random.PRNGKey(seed)))
        require_working(env)
        return place(begun)

    def shapes() -> TrainState:
        return jax.eval_shape(usual_first_state, jax.random.PRNGKey(0))

    def restart(state: TrainState) -> TrainState:
        with actors.on_first():
            key = jax.random.fold_in(key_for("restart", jnp.asarray(state.key)), state.segments)
            begun = jax.device_get(jax.jit(env.reset, static_argnums=1)(key, sizes.num_envs))
        require_working(env)
        no_return = np.zeros_like(state.actors.episode_return)
        return state._replace(actors=state.actors._replace(env=begun, episode_return=no_return))

    def place(state: TrainState) -> TrainState:
        shared = actors.replicate(state._replace(actors=None))
        return shared._replace(actors=actors.split_envs(state.actors))

    def collect(actor: ActorState, acting: Acting, hyperparameters: Hyperparameters) -> tuple[ActorState, Batch]:
        # A segment is enough to see how large observations are, before which no policy learns (see `standardize`).
        number = jnp.where(acting.obs_moments.known, segments_of(hyperparameters, sizes), 1)
        return collect_batch(actor, acting, number)

    def with_batch(state: TrainState, batch: Batch) -> TrainState:
        return state._replace(actors=None, learner=inserted(learner.replay, state.learner, batch))

    columns: list[Column] = []  # known when `learn` is traced

    def learn(state: TrainState, batch: Batch) -> tuple[TrainState, Float[Array, " metric"]]:
        hyperparameters = state.hyperparameters
        # Algorithms number it, so that it must not be one that lies beside that of the next update.
        key = jax.random.fold_in(state.key, state.segments)
        learned, info = learner.learn(state.learner, batch, hyperparameters, key)
        state, measured = report(state, batch, learned, info, rule, sizes)
        columns[:] = columns_of(measured)
        return state, jnp.stack([jnp.asarray(value, jnp.float32) for value in measured.values()])

    def several(state: TrainState) -> tuple[TrainState, Float[Array, "update metric"]]:
        def update(state: TrainState) -> tuple[TrainState, Array]:
            actor, batch = collect(state.actors, state.learner, state.hyperparameters)
            learned, measured = learn(with_batch(state, batch), batch)
            return learned._replace(actors=actor), measured

        nothing = jnp.full(jax.eval_shape(update, state)[1].shape, jnp.nan)

        def one(state: TrainState, _: None) -> tuple[TrainState, Array]:
            return jax.lax.cond(state.segments >= state.total_segments, lambda state: (state, nothing), update, state)

        return jax.lax.scan(one, state, length=algorithm.updates_at_once)

    def compile_several(state: TrainState) -> tuple[Several, tuple[Column, ...]]:
        compiled = mapped(several).lower(state).compile()
        return compiled, tuple(columns)

    def one_update(key: UInt32[Array, "2"], hyperparameters: Hyperparameters) -> tuple[TrainState, Array]:
        begun = first_state(key, hyperparameters)
        actor, batch = collect(begun.actors, begun.learner, begun.hyperparameters)
        learned, measured = learn(with_batch(begun, batch), batch)
        return learned._replace(actors=actor), measured

    one_actor = Actors(actors.own[:1])
    first_arguments = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), (np.zeros(2, np.uint32), hyperparameters())
    )

    def program() -> str:
        return one_actor.map(one_update).lower(*first_arguments).as_text()

    if rule.reads and rule.words != algorithm.adapt and learner.waits:
        # Traced for this alone, as by one actor: what an algorithm measures is known only then.
        jax.eval_shape(one_actor.map(one_update), *first_arguments)

    mapped_collect = mapped(collect)

    def learn_without_replay(state: TrainState, batch: Batch) -> tuple[TrainState, Float[Array, " metric"]]:
        state, measured = learn(state, batch)
        return state._replace(learner=without_replay(state.learner)), measured

    mapped_learn = mapped(learn if learner.replay is None else learn_without_replay, in_turn=True)

    def lower(state: TrainState) -> Lowered:
        traced = mapped_collect.lower(state.actors, state.learner, state.hyperparameters)
        _, batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), traced.out_info)

        def compile_collect() -> Collect:
            compiled = traced.compile()

            def collect_all(state: TrainState) -> tuple[TrainState, Batch]:
                actor, batch = compiled(state.actors, state.learner, state.hyperparameters)
                return state._replace(actors=actor), batch

            return collect_all

        def compile_inserting() -> Insert | None:
            if learner.replay is None:
                return None
            return compile_insert(learner.replay, functools.partial(mapped, in_turn=True), state.learner.replay, batch)

        def compile_learn() -> tuple[Learn, tuple[Column, ...]]:
            compiled = mapped_learn.lower(state._replace(actors=None), batch).compile()

            def learn_all(state: TrainState, batch: Batch) -> tuple[TrainState, Float[Array, "actor metric"]]:
                learned, measured = compiled(state._replace(actors=None), batch)
                if learner.replay is not None:
                    learned = learned._replace(learner=learned.learner._replace(replay=state.learner.replay))
                return learned._replace(actors=state.actors), measured

            return learn_all, tuple(columns)

        return Lowered(compile_collect, compile_inserting, compile_learn)

    return Update(
        policy=policy,
        learner=learner,
        hyperparameters=hyperparameters,
        start=start,
        first_state=first_state,
        shapes=shapes,
        place=place,
        restart=restart,
        lower=lower,
        compile_several=compile_several,
        at_once=algorithm.updates_at_once,
        program=program,
        collect=collect,
        rule=rule,
        sizes=sizes,
    )


def _collecting(
    env: Environment, policy: Policy, algorithm: Algorithm, sizes: Sizes
) -> tuple[Environment, CollectSegments]:
    """What batches are collected in, and how."""
    lengths = {"segment_length": sizes.segment_length, "max_segments": sizes.max_segments}
    if algorithm.episodes is None:
        return env, make_collect(env, policy, **lengths)
    repeated = Repeated(env, algorithm.episodes.conditions, sizes.segment_length)
    return repeated, whole_episodes(make_collect(repeated, policy, **lengths), repeated)


def first_hyperparameters(algorithm: Algorithm) -> Hyperparameters:
    """The traced settings that training starts with."""
    return {
        name: jnp.int32(value) if name == "steps_per_update" else jnp.float32(value)
        for name, value in algorithm.hyperparameters.items()
    }


def segments_of_run(total_steps: int, sizes: Sizes, parts: int) -> int:
    """Segments that a run ends with.

    Args:
      total_steps: of the run, environment steps.
      sizes: of batches.
      parts: into which a segment of all actors is cut where each counts by itself.

    Raises:
      ValueError: a compiled program cannot count so many; one sentence.
    """
    number = -(-total_steps * parts // sizes.segment_steps)
    if number >= 2**31:
        raise ValueError(
            f"total_steps={total_steps} are {number} segments of {sizes.segment_steps // parts} steps, and must be "
            "fewer than 2**31; give more environments (num_envs) or longer segments (segment_length)"
        )
    return number


def gather(state: TrainState) -> TrainState:
    """A copy on the host, the same however many actors there are: what they share once, and all environments."""
    return first(state._replace(actors=None))._replace(actors=join_envs(state.actors))


def segments_of(hyperparameters: Hyperparameters, sizes: Sizes) -> Int[Array, ""]:
    """Segments in a batch of as many steps as the settings have now."""
    return jnp.clip(hyperparameters["steps_per_update"] // sizes.segment_steps, 1, sizes.max_segments)
