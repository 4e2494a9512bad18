"""The update of a run: collect, learn and adapt, compiled."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree, UInt32

from jaxtrpo.adapt import Rule
from jaxtrpo.algorithms.algorithm import Algorithm, Learner
from jaxtrpo.config import Sizes
from jaxtrpo.config.kinds import kinds_differ
from jaxtrpo.envs.abilities import require_working
from jaxtrpo.envs.base import Environment
from jaxtrpo.envs.registry import is_program
from jaxtrpo.ops.keys import key_for
from jaxtrpo.parallel.actors import Actors, Trainings, first, join_envs
from jaxtrpo.parallel.collectives import after
from jaxtrpo.policies.exploring import Exploring
from jaxtrpo.policies.networks import Policy
from jaxtrpo.rollout.collect import CollectSegments, Recurrences, start_actors
from jaxtrpo.rollout.replay import Insert, compile_insert, inserted, without_replay
from jaxtrpo.rollout.staggering import first_time_limits
from jaxtrpo.rollout.types import Acting, ActorState, Batch, Hyperparameters, TrainState
from jaxtrpo.training.metrics import Measured, no_episodes, report
from jaxtrpo.training.programs import Programs
from jaxtrpo.training.selection import no_best

# Compiled functions; leaves have a leading axis of actors.
Collect = Callable[[TrainState], tuple[TrainState, Batch]]
Learn = Callable[[TrainState, Batch], tuple[TrainState, Measured]]
RunUpdates = Callable[[TrainState], tuple[TrainState, Measured]]


class Lowered(NamedTuple):
    """The parts of an update, ready to be compiled; they may be compiled at the same time, on different threads."""

    compile_collect: Callable[[], Collect]
    compile_insert: Callable[[], Insert | None]  # writes a batch into the replay buffer; None without one
    compile_learn: Callable[[], Learn]


@dataclasses.dataclass(frozen=True, eq=False)
class Update:
    """The functions of a run; everything in it is static.

    A state is *gathered* (on the host, without an axis of actors: `shapes`, `restart`) or *placed* (on the devices,
    each leaf with a leading axis of actors: `start`, `place`, `lower`). `first_state`, `collect`, `learn` and
    `run_updates` are one actor's part, to be mapped over actors or trainings.
    """

    env: Environment
    actors: Actors
    trainings: Trainings | None  # that this run is planned with, if there are several; see `in_one_program`
    algorithm: Algorithm
    policy: Policy
    learner: Learner
    rule: Rule
    sizes: Sizes
    total_segments: int  # of the whole run
    programs: Programs  # compiled from these functions, or from equal ones of another run
    _starts: Environment  # the environment that episodes are collected in: `env`, or `env` with repeated first states
    _collect: CollectSegments
    _recurrences: Recurrences
    _selects_best: bool  # whether the best policy is kept beside the last one
    _correlated_noise: int | None  # random numbers per action, if the noise of successive steps is correlated

    @property
    def in_one_program(self) -> bool:
        """Whether several trainings are compiled as one program; otherwise, each has its own program and device."""
        return self.trainings is not None and self.learner.waits and is_program(self.env)

    # States.

    def hyperparameters(self) -> Hyperparameters:
        """Returns the initial values of the traced settings."""
        return first_hyperparameters(self.algorithm)

    def first_state(self, key: UInt32[Array, "2"], hyperparameters: Hyperparameters) -> TrainState:
        """Returns the gathered state before the first update; traceable."""
        for_env, for_policy, for_critic, for_run = jax.random.split(key, 4)
        learner = self.learner.init(for_policy, for_critic)
        return TrainState(
            actors=start_actors(self._starts, for_env, self.sizes.num_envs, self._recurrences, self._correlated_noise),
            learner=learner,
            episodes=no_episodes(),
            hyperparameters=hyperparameters,
            adapt=self.rule.init(hyperparameters),
            key=for_run,
            segments=jnp.int32(0),
            total_segments=jnp.int32(self.total_segments),
            best=no_best(learner) if self._selects_best else (),
        )

    def start(self, seed: int) -> TrainState:
        """Returns the placed state before the first update."""

        def make() -> Callable[..., TrainState]:
            # Runs once, so optimising it would take longer than it saves.
            return jax.jit(self.first_state, compiler_options={"xla_backend_optimization_level": "0"})

        run_once = self.programs.get("first_state", make)
        with self.actors.on_first():
            begun = jax.block_until_ready(run_once(jax.random.PRNGKey(seed), self.hyperparameters()))
        require_working(self.env)
        return self.place(begun._replace(total_segments=np.int32(self.total_segments)))

    def shapes(self) -> TrainState:
        """Returns the shapes and dtypes of a gathered state."""
        return jax.eval_shape(self._default_first_state, jax.random.PRNGKey(0))

    def place(self, state: TrainState) -> TrainState:
        """Places a gathered state on the devices; undoes `gather`."""
        shared = self.actors.replicate(state._replace(actors=None))
        return shared._replace(actors=self.actors.split_envs(state.actors))

    def restart(self, state: TrainState) -> TrainState:
        """Starts new episodes in all environments of a gathered state, with staggered time limits as in a new run."""
        with self.actors.on_first():
            key = jax.random.fold_in(key_for("restart", jnp.asarray(state.key)), state.segments)
            begun = jax.device_get(jax.jit(self.env.reset, static_argnums=1)(key, self.sizes.num_envs))
            limits = jax.device_get(first_time_limits(self.sizes.num_envs, self.env.episode_length))
        require_working(self.env)
        no_return = np.zeros_like(state.actors.episode_return)
        anew = state.actors._replace(env=begun, episode_return=no_return, time_limits=limits)
        return state._replace(actors=anew)

    # One actor's part.

    def collect(self, actor: ActorState, acting: Acting, hyperparameters: Hyperparameters) -> tuple[ActorState, Batch]:
        """Collects a batch of `steps_per_update` steps, or of one segment if the scale of observations is unknown."""
        if self.algorithm.explore is not None:
            acting = cast(Any, acting)._replace(policy=Exploring(acting.policy, hyperparameters))
        # No policy learns before the scale is known (see `standardize`), and one segment suffices to estimate it.
        number = jnp.where(acting.obs_moments.known, segments_of(hyperparameters, self.sizes), 1)
        return self._collect(actor, acting, number)

    def learn(self, state: TrainState, batch: Batch) -> tuple[TrainState, Measured]:
        """Learns from a batch, which is already in the replay buffer if there is one, and adapts the settings."""
        # Folded in, not split: algorithms derive keys by counting up from theirs, so keys of updates must be far apart.
        key = jax.random.fold_in(state.key, state.segments)
        learned, info = self.learner.learn(state.learner, batch, state.hyperparameters, key)
        if difference := kinds_differ(state.learner, learned):
            before, now = difference
            raise ValueError(
                f"algorithm: learn must return a state with the shapes and types of the one it got: {before}, not {now}"
            )
        batch = after((learned, info), batch)  # what is reported needs collectives, too
        return report(state, batch, learned, info, self.rule, self.sizes)

    def run_updates(self, state: TrainState) -> tuple[TrainState, Measured]:
        """Makes `updates_at_once` updates; those beyond the end of the run change nothing and measure NaN."""
        nothing = jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan), jax.eval_shape(self._one_update, state)[1])

        def one(state: TrainState, _: None) -> tuple[TrainState, Measured]:
            over = state.segments >= state.total_segments
            return jax.lax.cond(over, lambda state: (state, nothing), self._one_update, state)

        return jax.lax.scan(one, state, length=self.algorithm.updates_at_once)

    def _default_first_state(self, key: UInt32[Array, "2"]) -> TrainState:
        return self.first_state(key, self.hyperparameters())

    def _one_update(self, state: TrainState) -> tuple[TrainState, Measured]:
        """Collects a batch, inserts it into the replay buffer if there is one, and learns."""
        actor, batch = self.collect(state.actors, state.learner, state.hyperparameters)
        learner = inserted(self.learner.replay, state.learner, batch)
        learned, measured = self.learn(state._replace(actors=None, learner=learner), batch)
        return learned._replace(actors=actor), measured

    def _first_update(self, key: UInt32[Array, "2"], hyperparameters: Hyperparameters) -> tuple[TrainState, Measured]:
        """Computes the first state and one update: together, all that a run computes."""
        return self._one_update(self.first_state(key, hyperparameters))

    # Compiled.

    def lower(self, state: TrainState) -> Lowered:
        """Traces collecting for placed states like this one; learning is only traced when it is compiled."""
        like = shapes_of(state)  # programs outlive the run, and must not keep its state

        def make() -> Lowered:
            collecting = self._mapped(self.collect).lower(like.actors, like.learner, like.hyperparameters)
            _, batch = shapes_of(collecting.out_info)
            return Lowered(
                functools.cache(functools.partial(_compile_collect, collecting)),
                functools.cache(functools.partial(self._compile_insert, like, batch)),
                functools.cache(functools.partial(self._compile_learn, like, batch)),
            )

        return self.programs.get("lowered", make)

    def compile_updates(self, state: TrainState) -> RunUpdates:
        """Compiles `run_updates` for placed states like this one."""
        like = shapes_of(state)
        return self.programs.get("updates", lambda: self._mapped(self.run_updates).lower(like).compile())

    def program(self) -> str:
        """Returns the lowered program of one training as text; trainings with equal texts differ only in data."""
        return self._on_one_actor().lower(*self._first_arguments()).as_text()

    def trace(self) -> None:
        """Traces an update, in which parts that do not fit raise their errors before anything is compiled or written.

        Such as a rule that reads a metric that the algorithm does not report, an entry of `info` that is called like a
        metric, or a surrogate that returns something else than one number per step.
        """
        jax.eval_shape(self._on_one_actor(), *self._first_arguments())

    def _on_one_actor(self) -> jax.stages.Wrapped:
        return Actors(self.actors.own[:1]).map(self._first_update)

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
            # Without the ring, since a program that returns it would copy it.
            return state._replace(learner=without_replay(state.learner)) if has_replay else state, measured

        compiled = self._mapped(learn, in_turn=True).lower(state._replace(actors=None), batch).compile()

        def learn_all(state: TrainState, batch: Batch) -> tuple[TrainState, Measured]:
            learned, measured = compiled(state._replace(actors=None), batch)
            if has_replay:
                learned = learned._replace(learner=learned.learner._replace(replay=state.learner.replay))
            return learned._replace(actors=state.actors), measured

        return learn_all


def shapes_of(tree: PyTree) -> PyTree:
    """Returns the shapes and dtypes of arrays."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def _compile_collect(collecting: jax.stages.Lowered) -> Collect:
    compiled = collecting.compile()

    def collect_all(state: TrainState) -> tuple[TrainState, Batch]:
        actor, batch = compiled(state.actors, state.learner, state.hyperparameters)
        return state._replace(actors=actor), batch

    return collect_all


def first_hyperparameters(algorithm: Algorithm) -> Hyperparameters:
    """Returns the initial values of the traced settings."""
    return {
        name: jnp.int32(value) if name == "steps_per_update" else jnp.float32(value)
        for name, value in algorithm.hyperparameters.items()
    }


def gather(state: TrainState) -> TrainState:
    """Copies a placed state to the host: one copy of shared parts, and all environments, whatever their actors."""
    return first(state._replace(actors=None))._replace(actors=join_envs(state.actors))


def segments_of(hyperparameters: Hyperparameters, sizes: Sizes) -> Int[Array, ""]:
    """Returns the number of segments in a batch of `steps_per_update` steps."""
    return jnp.clip(hyperparameters["steps_per_update"] // sizes.segment_steps, 1, sizes.max_segments)
