"""A run that is ready: collect -> learn and adapt -> report, until the end."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from jaxtrpo.actors import Actors, first
from jaxtrpo.asynchronous import asynchronous_updates
from jaxtrpo.config import Config
from jaxtrpo.envs.base import Environment, action_space, require_working
from jaxtrpo.evaluate import Evaluator, evaluation_key, make_evaluator
from jaxtrpo.group import Group
from jaxtrpo.ops.moments import Moments
from jaxtrpo.policies.networks import PolicyMaker
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.processes import group, is_first
from jaxtrpo.replaying import replaying_updates
from jaxtrpo.runs.checkpoint import save_checkpoint
from jaxtrpo.runs.config_file import save_config
from jaxtrpo.runs.directory import hold
from jaxtrpo.runs.followers import Follower
from jaxtrpo.runs.metrics import Metrics, Row
from jaxtrpo.runs.output import Output, Saving
from jaxtrpo.runs.policy_file import save_policy
from jaxtrpo.runs.progress import NOTHING_DONE, Progress
from jaxtrpo.runs.symptoms import notes, symptoms
from jaxtrpo.runs.termination import KINDS, Impatience, Interrupts, Terminated, Termination, termination_as_interrupt
from jaxtrpo.types import TrainState
from jaxtrpo.update import Update, gather
from jaxtrpo.updates import Moment, no_rows, rows_of, synchronous_updates

OnUpdate = Callable[[Row, TrainState], object]


class Result(NamedTuple):
    """What a training run leaves."""

    policy: TrainedPolicy  # callable on observations
    # The columns of metrics.csv; blanks are NaN. Before the first update those that all algorithms have, empty.
    metrics: dict[str, np.ndarray]
    state: TrainState  # everything, on the actors' devices
    config: Config


class Run(NamedTuple):
    """A training run that is ready to start."""

    env: Environment
    config: Config
    actors: Actors
    maker: PolicyMaker
    update: Update
    state: TrainState
    directory: Path | None
    started: float  # seconds, perf_counter
    metrics: Mapping[str, np.ndarray]  # columns of the updates before, if it goes on with a run
    close: Callable[[], object]  # ends what was started for this run alone
    notes: tuple[str, ...] = ()  # what a person should know before it starts
    invalid_is_broken: bool = True  # whether steps are invalid only where a simulation broke
    saving: Saving = Saving()
    on_update: OnUpdate | None = None  # called after each update
    follow: tuple[Callable[[Row | None], Follower], ...] = ()  # given the last row of what it goes on with

    def run(self, *, progress: bool = True) -> Result:
        """Trains to the end, or until it is interrupted; what was learned by then is kept in both cases.

        Raises:
          OutputError: the directory cannot be written to any more.
          Terminated: SIGTERM was received; everything is saved.
        """
        others = None if self.actors.here else group()
        interrupts = None
        try:
            with ExitStack() as stack:
                if others is None:
                    stack.enter_context(termination_as_interrupt())
                else:
                    stack.enter_context(others.together(self._what_then()))
                    interrupts = stack.enter_context(Interrupts())
                if self.directory is not None and is_first():
                    stack.enter_context(hold(self.directory))
                return self._run(Record(self, lambda: self.state, others, interrupts), progress=progress and is_first())
        finally:
            self.close()

    def _what_then(self) -> str:
        if self.directory is None:
            return "; nothing was saved, since there was no out"
        return f"; resume=True (--resume) goes on with the last checkpoint in {self.directory}"

    def _run(self, record: Record, *, progress: bool) -> Result:
        interruption, looked_for = None, symptoms(invalid_is_broken=self.invalid_is_broken)
        with (
            ExitStack() as stack,
            Progress(self.config.total_steps, record.last, enabled=progress) as bar,
            closing(self._updates(record.last)) as updates,
        ):
            record.follow(stack)
            for note in self.notes:
                bar.note(note)
            try:
                for moment, rows in updates:
                    record.add(rows, moment)
                    bar.update(rows[-1])
                    for note in notes(looked_for, rows):
                        bar.note(note)
            except Impatience:  # the others are anywhere, and nothing can be gathered
                raise
            except KeyboardInterrupt as error:
                interruption = error
                bar.note("interrupted; keeping what was learned so far")
            except Exception:
                record.save_alone()
                raise
        record.save()
        if isinstance(interruption, Termination):
            raise Terminated
        return record.result()

    def write(self, place: Path, metrics: Metrics, state: TrainState, updates: int) -> None:
        """Puts a gathered state, and the metrics of the updates that led to it, into a directory."""
        save_checkpoint(place, self.env.name, self.config, metrics.columns(updates), state)
        save_policy(place, self._policy(state.learner.policy, state.learner.obs_moments))
        save_config(place, self.env.name, self.config)

    def _updates(self, last: Row = NOTHING_DONE) -> Generator[tuple[Callable[[], TrainState], list[dict[str, float]]]]:
        """What gives the state, and rows of metrics, one an update; the row before them was `last`."""
        evaluate = self.evaluation(self.evaluator())
        env_steps = int(last["env_steps"] or 0)
        started = self.started - float(last["wall_seconds"] or 0)
        if env_steps >= self.config.total_steps:
            return
        with closing(self._moments()) as moments:
            before = time.perf_counter() - started
            while env_steps < self.config.total_steps:
                moment = next(moments)
                require_working(self.env)
                now = time.perf_counter() - started
                rows = rows_of(moment, moment.measured, last, before, now)
                if not rows:  # the program is sure that it is over, though it counts in numbers that round
                    return
                steps_before, last, before = env_steps, rows[-1], now
                env_steps = int(last["env_steps"])
                # The policy is known as it is after all of them.
                last["eval_return"] = evaluate(moment.state, steps_before, env_steps)
                yield moment.state, rows

    def _moments(self) -> Generator[Moment]:
        """Updates without end."""
        if self.update.learner.asynchronous is not None:
            return asynchronous_updates(self.update, self.state, self.actors)
        if self.update.learner.replaying is not None:
            return replaying_updates(self.update, self.state, self.actors)
        others = None if self.actors.here else group()
        return synchronous_updates(self.update, self.state, first, others.turn if others else None)

    def evaluator(self) -> Evaluator | None:
        """Evaluates deterministic policies, if the run has evaluations."""
        if not self.config.eval_every:
            return None
        # Simulators that are elsewhere are in the middle of the training's episodes.
        env = getattr(self.env, "copy", lambda: self.env)()
        return make_evaluator(env, self.update.policy, self.actors, self.config.eval_episodes)

    def evaluation(self, evaluator: Evaluator | None) -> Callable[[Callable[[], TrainState], int, int], float]:
        """(state, steps before, steps now) -> mean return, if there are `eval_every` steps between them; else NaN."""
        config = self.config

        def evaluate(moment: Callable[[], TrainState], steps_before: int, env_steps: int) -> float:
            if evaluator is None or env_steps // config.eval_every == steps_before // config.eval_every:
                return math.nan
            number = env_steps // config.eval_every % 2**32  # which of its evaluations, as far as a key can count
            key = jax.random.fold_in(evaluation_key(config.seed), number)
            learner = moment().learner
            return evaluator((learner.policy, learner.obs_moments), key).mean

        return evaluate

    def policy_of(self, state: TrainState) -> TrainedPolicy:
        """The policy of a state, which acts without the run."""
        return self._policy(*first((state.learner.policy, state.learner.obs_moments)))

    def _policy(self, params: PyTree, moments: Moments) -> TrainedPolicy:
        return TrainedPolicy(
            env_name=self.env.name,
            observation_size=self.env.observation_size,
            actions=action_space(self.env),
            maker=self.maker,
            params=params,
            moments=moments,
            observations=getattr(self.env, "observations", None),
            max_episode_steps=self.config.max_episode_steps,
        )


class Record:
    """What a run leaves while it trains: its files, what others are told, and the state that it has reached.

    Of several processes only the first has files, but a state is gathered by all: they agree on when.
    """

    def __init__(
        self,
        run: Run,
        state: Callable[[], TrainState],
        others: Group | None = None,
        interrupts: Interrupts | None = None,
    ):
        """Begins with a state, that of the last of `run.metrics`; OutputError is raised as by `Output`.

        Args:
          run: that it is of.
          state: gives it when asked.
          others: processes that train with this one.
          interrupts: that all of them shall obey at the same time.
        """
        self._run, self._followers, self._others, self._interrupts = run, list[Follower](), others, interrupts
        # One name: an interrupt finds a state and the number of updates that led to it.
        self._reached = self._gathered(state, int(run.metrics["update"][-1]) if run.metrics else 0)
        self._speaks = others is None or is_first()
        self._writing = nullcontext if others is None else others.busy
        directory = run.directory if self._speaks else None
        if others is not None:
            self._reached.home()
        with self._writing():
            self._output = Output(
                directory, run.saving, run.metrics, lambda place, metrics: run.write(place, metrics, *self._at_home())
            )

    def _gathered(self, state: Callable[[], TrainState], update: int) -> _Reached:
        return _Reached(state, functools.cache(lambda: gather(state())), update)

    def _at_home(self) -> tuple[TrainState, int]:
        return self._reached.home(), self._reached.update

    @property
    def last(self) -> Row:
        """Row of the last update."""
        return self._output.last or NOTHING_DONE

    def follow(self, stack: ExitStack) -> None:
        """Begins to tell others its metrics, until the stack is closed."""
        begun = self._run.follow if self._speaks else ()
        self._followers = [stack.enter_context(closing(begin(self._output.last))) for begin in begun]

    def add(self, rows: Sequence[Row], state: Callable[[], TrainState]) -> None:
        """Takes in updates, and the state that they led to.

        Raises:
          KeyboardInterrupt: one of the processes was interrupted or terminated.
        """
        self._output.add(rows)
        self._reached = self._gathered(state, int(rows[-1]["update"] or 0))
        for follower in self._followers:
            follower.add(rows)
        urgency = self._agree(self._output.wants(len(rows)))
        with self._writing():
            self._output.keep(len(rows))
        if self._run.on_update is not None:
            for row in rows:
                self._run.on_update(row, state())
        interruption = KINDS[urgency]
        if interruption is not None:
            raise interruption

    def _agree(self, wants: bool) -> int:
        """Gathers the state if the first process wants to write it; the urgency of interrupts of all processes."""
        if self._others is None or self._interrupts is None:
            return 0
        self._others.turn()
        agreed = self._run.actors.agree(2 * self._interrupts.urgency + wants)
        if agreed:
            self._reached.home()
        return agreed // 2

    def save(self) -> None:
        """Makes what was reached a checkpoint."""
        if self._others is not None:
            self._reached.home()
        self._output.save()

    def save_alone(self) -> None:
        """The same where something went wrong: other processes do not know of it, so nothing is left to be gathered."""
        if self._others is None:
            self._output.save()

    def result(self) -> Result:
        """What is left in the end."""
        state = self._reached.state()
        columns = self._output.metrics.columns() or no_rows(self._run.update.hyperparameters())
        return Result(self._run.policy_of(state), columns, state, self._run.config)


class _Reached(NamedTuple):
    """Where a run is."""

    state: Callable[[], TrainState]  # on the actors' devices
    home: Callable[[], TrainState]  # gathered
    update: int
