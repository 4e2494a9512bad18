"""A prepared run, and its loop: collect, learn, adapt and record until the end."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from jaxtrpo.config import Config
from jaxtrpo.config.environment import names_of
from jaxtrpo.envs.abilities import copy_of, observation_space, observations_of, require_working
from jaxtrpo.envs.base import Environment, action_space
from jaxtrpo.envs.observation_space import as_observed
from jaxtrpo.ops.moments import Moments
from jaxtrpo.parallel.actors import Actors, first
from jaxtrpo.parallel.processes import CollectiveTimeout, ending_together, is_first
from jaxtrpo.policies.networks import PolicyMaker
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.rollout.evaluation import Evaluator, evaluation_key, make_evaluator
from jaxtrpo.rollout.types import TrainState
from jaxtrpo.runs.checkpoint import Checkpoint, save_checkpoint
from jaxtrpo.runs.config_file import save_config
from jaxtrpo.runs.directory import OutputError, hold
from jaxtrpo.runs.loggers import Logger
from jaxtrpo.runs.metrics import Metrics, Row
from jaxtrpo.runs.output import Saving
from jaxtrpo.runs.policy_file import save_policy
from jaxtrpo.runs.progress import NOTHING_DONE, Progress
from jaxtrpo.runs.symptoms import Symptom, notes, symptoms
from jaxtrpo.runs.termination import (
    END_SECONDS,
    EXIT_CODE,
    DeferredSignals,
    Handling,
    Interrupted,
    Interrupts,
    SecondInterrupt,
    Terminated,
    Termination,
    end_in_time,
    ending_within,
)
from jaxtrpo.training.drivers.asynchronous import asynchronous_updates
from jaxtrpo.training.drivers.replay import replaying_updates
from jaxtrpo.training.drivers.synchronous import synchronous_updates
from jaxtrpo.training.make_update import segments_of_run
from jaxtrpo.training.metrics import Moment, rows_of
from jaxtrpo.training.record import OnUpdate, Record, Result
from jaxtrpo.training.selection import selected
from jaxtrpo.training.stopping import Forecast
from jaxtrpo.training.update import Update
from jaxtrpo.training.warm_start import WarmStart

# Part of a run after which its last evaluation is due: one that ends with its time does not know which update is last.
LAST_EVALUATION = 0.99


class Watch(NamedTuple):
    """Shows a run elsewhere, such as among others."""

    update: Callable[[Sequence[Row]], object]  # takes the rows of further updates; may raise KeyboardInterrupt
    note: Callable[[str], object]  # takes notes and warnings


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A run without its state, checked and built; everything in it is static."""

    env: Environment
    name_in_files: str  # of the environment
    config: Config
    actors: Actors
    maker: PolicyMaker
    update: Update
    directory: Path | None
    directory_is_new: bool  # a run that is found in it later is somebody else's
    saved: Checkpoint | None  # to resume from
    warm_start: WarmStart | None  # what a new run takes over from another one
    started: float  # seconds, perf_counter
    close: Callable[[], object]  # closes the simulators that were started for this run
    notes: tuple[str, ...]  # for the user, before the run starts
    evaluations: int  # in equal parts of the run, if `eval_every` is left open; 0 for none
    invalid_is_broken: bool  # whether all invalid steps are those of broken simulations
    saving: Saving
    on_update: OnUpdate | None  # called after each update
    loggers: tuple[Callable[[Row | None], Logger], ...]  # start loggers, given the last row of a run that is resumed

    def write(self, place: Path, metrics: Metrics, state: TrainState, updates: int) -> None:
        """Writes a gathered state and the metrics of its first `updates` updates into a directory."""
        save_checkpoint(place, self.env.name, self.config, metrics.columns(updates), state)
        # A snapshot is that of an update, and so is its policy.
        best = state.best if place == self.directory else ()
        save_policy(place, self._policy(*selected(best, state.learner.policy, state.learner.obs_moments)))
        save_config(place, self.name_in_files, self.config)

    def evaluator(self) -> Evaluator | None:
        """Returns an evaluator of deterministic policies; None if the run has no evaluations."""
        if not (self.config.eval_every or self.evaluations):
            return None
        waiting = nullcontext if self.actors.in_one_process else lambda: CollectiveTimeout()()

        def make() -> Evaluator:
            # Simulators outside of JAX are in the middle of training episodes.
            env = copy_of(self.env)
            return make_evaluator(env, self.update.policy, self.actors, self.config.eval_episodes, waiting=waiting)

        return self.update.programs.get("evaluator", make)

    def evaluation(
        self, evaluator: Evaluator | None, say: Callable[[str], object]
    ) -> Callable[[Callable[[], TrainState], int, int, int], float]:
        """Returns a function (state, steps before, steps now, steps of the run) -> mean return; NaN if none is due.

        Args:
          evaluator: see `evaluator`.
          say: shows the user what takes time.
        """
        config = self.config

        def number_after(env_steps: int, total_steps: int) -> int:
            if config.eval_every:
                return env_steps // config.eval_every
            return int(self.evaluations * env_steps / (LAST_EVALUATION * total_steps))

        last: int | None = None  # number of the last evaluation: forecasts of the end of the run change

        def evaluate(moment: Callable[[], TrainState], steps_before: int, env_steps: int, total_steps: int) -> float:
            nonlocal last
            last = number_after(steps_before, total_steps) if last is None else last
            number = number_after(env_steps, total_steps)
            if evaluator is None or number <= last:
                return math.nan
            last = number
            say("evaluating")
            key = jax.random.fold_in(evaluation_key(config.seed), number % 2**32)  # keys hold 32 bits
            learner = moment().learner
            return evaluator((learner.policy, learner.obs_moments), key).mean

        return evaluate

    def symptoms(self) -> list[Symptom]:
        """Returns the detectors of problems that the run may have."""
        return symptoms(
            invalid_is_broken=self.invalid_is_broken,
            logged=names_of(self.config.log_info),
            adapted=dict.fromkeys(self.update.algorithm.hyperparameters, str(self.config.adapt)),
        )

    def policy_of(self, state: TrainState) -> TrainedPolicy:
        """Returns the policy that is selected in a placed state; it can be used without the run."""
        return self._policy(*selected(*first((state.best, state.learner.policy, state.learner.obs_moments))))

    def _policy(self, params: PyTree, moments: Moments) -> TrainedPolicy:
        space = observation_space(self.env)._replace(frames=self.config.frame_stack)
        return TrainedPolicy(
            env_name=self.name_in_files,
            observation_size=self.env.observation_size,
            actions=action_space(self.env),
            maker=self.maker,
            params=params,
            moments=moments,
            observations=observations_of(self.env),
            max_episode_steps=self.config.max_episode_steps,
            masked=self.update.policy.is_masked,
            env_options=self.config.env_options,
            observation_space=None if isinstance(as_observed(space), int) else space,
            has_probabilities=self.update.algorithm.explore is None,
        )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Run(Plan):
    """A run that is ready to start."""

    state: TrainState  # on the actors' devices
    metrics: Mapping[str, np.ndarray]  # columns of the previous updates, if the run is resumed

    def run(self, *, progress: bool = True, watch: Watch | None = None) -> Result:
        """Trains until the end, until a criterion stops the run, or until it is interrupted.

        Args:
          progress: show progress, with the notes and warnings among it.
          watch: shows them elsewhere, whether or not there is progress here.

        Raises:
          OutputError: the directory is no longer writable.
          Interrupted: SIGINT was received; everything is saved.
          Terminated: SIGTERM was received; everything is saved.
        """
        interrupts = None
        closing_in_time = nullcontext()
        try:
            with ExitStack() as stack:
                if self.actors.in_one_process:
                    signals = stack.enter_context(DeferredSignals())
                else:
                    stack.enter_context(ending_together())
                    signals = interrupts = stack.enter_context(Interrupts())
                if self.directory is not None and is_first():
                    stack.enter_context(hold(self.directory, new=self.directory_is_new))
                record = Record(self, self.metrics, lambda: self.state, interrupts)
                result, interrupted = self._run(record, signals, watch, progress=progress and is_first())
        except (Terminated, Termination):  # the latter before the first state could be saved
            closing_in_time = ending_within(END_SECONDS, EXIT_CODE)
            end_in_time(EXIT_CODE)
            raise Terminated from None
        finally:
            with closing_in_time:
                self.close()
        if interrupted:  # raised here, since processes that have agreed on it end in order
            raise Interrupted(result)
        return result

    def _run(self, record: Record, signals: Handling, watch: Watch | None, *, progress: bool) -> tuple[Result, bool]:
        """Returns the result, and whether the run was interrupted."""
        interrupt, checks = None, self.symptoms()
        with ExitStack() as loggers:
            with (
                Progress(self.config.most_steps, record.last, enabled=progress, best=record.best) as bar,
                closing(self._updates(record.last, bar.status, record.take_changed, bar.expect)) as updates,
            ):
                tell = bar.note if watch is None else watch.note
                try:
                    record.start_loggers(loggers)
                    for text in self.notes:
                        tell(text)
                    for moment, rows in () if record.stopped else updates:
                        signals.defer()
                        record.add(rows, moment.state, moment.shown)
                        bar.update(rows[-1])
                        if watch is not None:
                            watch.update(rows)
                        for text in notes(checks, rows):
                            tell(text)
                        signals.end_of_update()
                        if record.stopped:
                            break
                except SecondInterrupt:  # other processes may be anywhere, so no state can be gathered
                    raise
                except KeyboardInterrupt as error:
                    interrupt = error
                    bar.note("interrupted; keeping what was learned so far")
                except Exception:
                    with suppress(OutputError):  # the first error is the one to know of
                        record.save_alone()
                    raise
                if record.stopped and interrupt is None:
                    bar.note(record.stopped)
            signals.ignore()
            record.save()  # before the loggers are closed, which may take long or fail
        try:
            signals.end_of_update()  # one may have come since
        except KeyboardInterrupt as error:
            interrupt = error
        if isinstance(interrupt, Termination):
            raise Terminated
        return record.result(), interrupt is not None

    def _updates(
        self,
        last: Row = NOTHING_DONE,
        say: Callable[[str], object] = lambda text: None,
        changed: Callable[[], TrainState | None] = lambda: None,
        expect: Callable[[int], object] = lambda total_steps: None,
    ) -> Generator[tuple[Moment, list[dict[str, float]]]]:
        """Yields what the driver does, and one row of metrics per update.

        Args:
          last: the previous row.
          say: shows the user what takes time.
          changed: see `synchronous_updates`.
          expect: shows the user how many steps the run is expected to make.
        """
        evaluate = self.evaluation(self.evaluator(), say)
        env_steps, seconds = int(last["env_steps"] or 0), float(last["wall_seconds"] or 0)
        forecast, started = Forecast(self.config, env_steps, seconds), self.started - seconds
        if env_steps >= self.config.most_steps:
            return
        say("compiling")
        with closing(self._moments(changed, forecast)) as moments:
            before = time.perf_counter() - started
            while env_steps < self.config.most_steps:
                moment = next(moments)
                require_working(self.env)
                now = time.perf_counter() - started
                rows = rows_of(moment, moment.measured.values, last, before, now)
                if not rows:  # the compiled program, which counts in segments, has reached the end of the run
                    return
                steps_before, last, before = env_steps, rows[-1], now
                env_steps = int(last["env_steps"])
                forecast.add(env_steps, now)
                expect(forecast.total_steps)
                # Only the policy after the last of these updates is known.
                last["eval_return"] = evaluate(moment.shown, steps_before, env_steps, forecast.total_steps)
                yield moment, rows

    def _moments(self, changed: Callable[[], TrainState | None], forecast: Forecast) -> Generator[Moment]:
        """Returns the updates of the driver that the algorithm needs, without end."""
        if self.update.learner.asynchronous is not None:
            return asynchronous_updates(self.update, self.state, self.actors)
        if self.update.learner.replaying is not None:
            return replaying_updates(self.update, self.state, self.actors)
        waiting = nullcontext if self.actors.in_one_process else CollectiveTimeout()

        def total_segments() -> int | None:
            if self.config.stop_after_seconds is None:
                return None
            return segments_of_run(forecast.total_steps, self.update.sizes, 1)

        return synchronous_updates(self.update, self.state, first, waiting, changed, total_segments)
