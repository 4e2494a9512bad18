"""One update of a run: collect, learn and adapt, put together and compiled."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree, UInt32

from jaxtrpo.adapt import Rule, require_settings
from jaxtrpo.algorithms.algorithm import Algorithm, Learner, Spec
from jaxtrpo.algorithms.surrogates import Surrogate
from jaxtrpo.config import Sizes
from jaxtrpo.critics.critic import CriticMaker
from jaxtrpo.envs.abilities import require_working
from jaxtrpo.envs.base import Environment, action_space
from jaxtrpo.envs.fixed_starts import Repeated
from jaxtrpo.ops.keys import key_for
from jaxtrpo.parallel.actors import Actors, Trainings, first, join_envs
from jaxtrpo.policies.networks import Policy, PolicyMaker
from jaxtrpo.rollout.collect import CollectSegments, make_collect, start_actors, whole_episodes
from jaxtrpo.rollout.replay import Insert, compile_insert, inserted, without_replay
from jaxtrpo.rollout.types import Acting, ActorState, Batch, Hyperparameters, TrainState
from jaxtrpo.training.metrics import Measured, no_episodes, report

# Compiled; leaves have a leading axis of actors.
Collect = Callable[[TrainState], tuple[TrainState, Batch]]
Learn = Callable[[TrainState, Batch], tuple[TrainState, Measured]]
Several = Callable[[TrainState], tuple[TrainState, Measured]]


class Parts(NamedTuple):
    """What a run is made of."""

    algorithm: Algorithm
    policy: PolicyMaker
    critic: CriticMaker
    rule: Rule
    rule_was_chosen: bool  # by the user; otherwise it is the algorithm's own, and fits
    surrogate: Surrogate | None  # what the policy maximises in place of the algorithm's own surrogate
    discount: float
    normalize_observations: bool


class Lowered(NamedTuple):
    """The parts of an update, traced and ready to be compiled; all may be compiled at the same time, on threads."""

    compile_collect: Callable[[], Collect]
    compile_insert: Callable[[], Insert | None]  # writes a batch into the replay buffer; None without one
    compile_learn: Callable[[], Learn]


@dataclasses.dataclass(frozen=True, eq=False)
class Update:
    """The functions of a run; everything here is static.

    A state is *gathered* (on the host, no axis of actors: `shapes`, `restart`) or *placed* (on the devices, each leaf
    with a leading axis of actors: `start`, `place`, `lower`). `first_state`, `collect`, `learn` and `several` are one
    actor's part, to be mapped over actors or trainings.
    """

    env: Environment
    actors: Actors
    trainings: Trainings | None  # of which this run is one, if several are compiled as one program
    algorithm: Algorithm
    policy: Policy
    learner: Learner
    rule: Rule
    sizes: Sizes  # of batches
    total_segments: int  # after which the run ends
    _starts: Environment  # the environment that episodes are collected in: `env`, or `env` with repeated first states
    _collect: CollectSegments

    # States.

    def hyperparameters(self) -> Hyperparameters:
        """The traced settings that training starts with."""
        return first_hyperparameters(self.algorithm)

    def first_state(self, key: UInt32[Array, "2"], hyperparameters: Hyperparameters) -> TrainState:
        """The gathered state before the first update; traced."""
        for_env, for_policy, for_critic, for_run = jax.random.split(key, 4)
        return TrainState(
            actors=start_actors(self._starts, for_env, self.sizes.num_envs),
            learner=self.learner.init(for_policy, for_critic),
            episodes=no_episodes(),
            hyperparameters=hyperparameters,
            adapt=self.rule.init(hyperparameters),
            key=for_run,
            segments=jnp.int32(0),
            total_segments=jnp.int32(self.total_segments),
        )

    def start(self, seed: int) -> TrainState:
        """The placed state before the first update."""
        # It runs once: optimising it would take longer than it saves.
        run_once = jax.jit(self._usual_first_state, compiler_options={"xla_backend_optimization_level": "0"})
        with self.actors.on_first():
            begun = jax.block_until_ready(run_once(jax.random.PRNGKey(seed)))
        require_working(self.env)
        return self.place(begun)

    def shapes(self) -> TrainState:
        """Shapes and types of a gathered state."""
        return jax.eval_shape(self._usual_first_state, jax.random.PRNGKey(0))

    def place(self, state: TrainState) -> TrainState:
        """Puts a gathered state onto the devices; undoes `gather`."""
        shared = self.actors.replicate(state._replace(actors=None))
        return shared._replace(actors=self.actors.split_envs(state.actors))

    def restart(self, state: TrainState) -> TrainState:
        """Begins new episodes in all environments of a gathered state."""
        with self.actors.on_first():
            key = jax.random.fold_in(key_for("restart", jnp.asarray(state.key)), state.segments)
            begun = jax.device_get(jax.jit(self.env.reset, static_argnums=1)(key, self.sizes.num_envs))
        require_working(self.env)
        no_return = np.zeros_like(state.actors.episode_return)
        return state._replace(actors=state.actors._replace(env=begun, episode_return=no_return))

    # One actor's part.

    def collect(self, actor: ActorState, acting: Acting, hyperparameters: Hyperparameters) -> tuple[ActorState, Batch]:
        """Collects a batch of `steps_per_update` steps, or of one segment before the scale of observations is known."""
        # A segment is enough to see how large observations are, before which no policy learns (see `standardize`).
        number = jnp.where(acting.obs_moments.known, segments_of(hyperparameters, self.sizes), 1)
        return self._collect(actor, acting, number)

    def learn(self, state: TrainState, batch: Batch) -> tuple[TrainState, Measured]:
        """Learns from a batch that is in the replay buffer already, if there is one, and adapts the settings."""
        # Folded in rather than split: algorithms count up from their key, so those of two updates must not be adjacent.
        key = jax.random.fold_in(state.key, state.segments)
        learned, info = self.learner.learn(state.learner, batch, state.hyperparameters, key)
        return report(state, batch, learned, info, self.rule, self.sizes)

    def several(self, state: TrainState) -> tuple[TrainState, Measured]:
        """Makes `updates_at_once` updates; those after the end of the run change nothing, and measure NaN."""
        nothing = jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan), jax.eval_shape(self._whole, state)[1])

        def one(state: TrainState, _: None) -> tuple[TrainState, Measured]:
            over = state.segments >= state.total_segments
            return jax.lax.cond(over, lambda state: (state, nothing), self._whole, state)

        return jax.lax.scan(one, state, length=self.algorithm.updates_at_once)

    def _usual_first_state(self, key: UInt32[Array, "2"]) -> TrainState:
        return self.first_state(key, self.hyperparameters())

    def _whole(self, state: TrainState) -> tuple[TrainState, Measured]:
        """Collects, inserts and learns."""
        actor, batch = self.collect(state.actors, state.learner, state.hyperparameters)
        learner = inserted(self.learner.replay, state.learner, batch)
        learned, measured = self.learn(state._replace(actors=None, learner=learner), batch)
        return learned._replace(actors=actor), measured

    def _first(self, key: UInt32[Array, "2"], hyperparameters: Hyperparameters) -> tuple[TrainState, Measured]:
        """All that a run computes: its first state, and an update."""
        return self._whole(self.first_state(key, hyperparameters))

    # Compiled.

    def lower(self, state: TrainState) -> Lowered:
        """Traces collecting for placed states like this one; learning is traced where it is compiled."""
        collecting = self._mapped(self.collect).lower(state.actors, state.learner, state.hyperparameters)
        _, batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), collecting.out_info)
        return Lowered(
            functools.partial(_compile_collect, collecting),
            functools.partial(self._compile_insert, state, batch),
            functools.partial(self._compile_learn, state, batch),
        )

    def compile_several(self, state: TrainState) -> Several:
        """Compiles `several` for placed states like this one."""
        return self._mapped(self.several).lower(state).compile()

    def program(self) -> str:
        """All that is compiled for one training, as text: two trainings with the same text differ in data alone."""
        return self._on_one_actor().lower(*self._first_arguments()).as_text()

    def require_columns(self) -> None:
        """Traces an update, which raises ValueError if the rule reads a metric that the algorithm does not measure."""
        jax.eval_shape(self._on_one_actor(), *self._first_arguments())

    def _on_one_actor(self) -> jax.stages.Wrapped:
        return Actors(self.actors.own[:1]).map(self._first)

    def _first_arguments(self) -> PyTree:
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype),
            (np.zeros(2, np.uint32), self.hyperparameters()),
        )

    def _mapped(self, function: Callable, *, in_turn: bool = False, donate: Sequence[int] = ()) -> jax.stages.Wrapped:
        if self.trainings is None:
            return self.actors.map(function, donate=donate)
        return self.trainings.map(function, donate=donate, in_turn=in_turn)

    def _compile_insert(self, state: TrainState, batch: Batch) -> Insert | None:
        if self.learner.replay is None:
            return None
        mapped = functools.partial(self._mapped, in_turn=True)
        return compile_insert(self.learner.replay, mapped, state.learner.replay, batch)

    def _compile_learn(self, state: TrainState, batch: Batch) -> Learn:
        has_replay = self.learner.replay is not None

        def learn(state: TrainState, batch: Batch) -> tuple[TrainState, Measured]:
            state, measured = self.learn(state, batch)
            # A program that returned the ring would copy it.
            return state._replace(learner=without_replay(state.learner)) if has_replay else state, measured

        compiled = self._mapped(learn, in_turn=True).lower(state._replace(actors=None), batch).compile()

        def learn_all(state: TrainState, batch: Batch) -> tuple[TrainState, Measured]:
            learned, measured = compiled(state._replace(actors=None), batch)
            if has_replay:
                learned = learned._replace(learner=learned.learner._replace(replay=state.learner.replay))
            return learned._replace(actors=state.actors), measured

        return learn_all


def _compile_collect(collecting: jax.stages.Lowered) -> Collect:
    compiled = collecting.compile()

    def collect_all(state: TrainState) -> tuple[TrainState, Batch]:
        actor, batch = compiled(state.actors, state.learner, state.hyperparameters)
        return state._replace(actors=actor), batch

    return collect_all


def make_update(
    env: Environment, parts: Parts, sizes: Sizes, actors: Actors, total_steps: int, trainings: Trainings | None = None
) -> Update:
    """Checks that the parts of a run fit each other, and puts them together. Nothing is compiled.

    Args:
      env: the environment.
      parts: what learns.
      sizes: of batches.
      actors: devices that collect and learn.
      total_steps: environment steps of the run.
      trainings: of which this run is one, if several are compiled as one program; `actors` is then one.

    Raises:
      ValueError: the parts do not fit each other or the environment; one sentence.
    """
    algorithm, rule = parts.algorithm, parts.rule
    require_settings(rule, algorithm.hyperparameters, algorithm.spec_string)
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
    starts, collect = _collecting(env, policy, algorithm, sizes)
    update = Update(
        env=env,
        actors=actors,
        trainings=trainings,
        algorithm=algorithm,
        policy=policy,
        learner=learner,
        rule=rule,
        sizes=sizes,
        total_segments=segments_of_run(total_steps, sizes, counted_apart(learner, actors)),
        _starts=starts,
        _collect=collect,
    )
    if rule.reads and parts.rule_was_chosen and learner.waits:
        update.require_columns()
    return update


def _collecting(
    env: Environment, policy: Policy, algorithm: Algorithm, sizes: Sizes
) -> tuple[Environment, CollectSegments]:
    """The environment that batches are collected in, and how."""
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


def counted_apart(learner: Learner, actors: Actors) -> int:
    """Into how many parts a segment is cut for counting: actors that do not wait for each other count their own."""
    return 1 if learner.waits else actors.count


def segments_of_run(total_steps: int, sizes: Sizes, parts: int) -> int:
    """Segments that a run ends with.

    Args:
      total_steps: of the run, environment steps.
      sizes: of batches.
      parts: into which a segment of all actors is cut (see `counted_apart`).

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
    """Copies a placed state to the host: what actors share once, and all environments; independent of their number."""
    return first(state._replace(actors=None))._replace(actors=join_envs(state.actors))


def segments_of(hyperparameters: Hyperparameters, sizes: Sizes) -> Int[Array, ""]:
    """Segments in a batch of as many steps as the settings have now."""
    return jnp.clip(hyperparameters["steps_per_update"] // sizes.segment_steps, 1, sizes.max_segments)
