"""Records of a run while it trains: files, loggers and the latest state."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jaxtrpo.config import Config
from jaxtrpo.config.checks import plain
from jaxtrpo.config.messages import type_name
from jaxtrpo.envs.abilities import times_changed
from jaxtrpo.envs.base import EnvState
from jaxtrpo.parallel.processes import LONG_LATE_SECONDS, CollectiveTimeout, is_first, wait_together
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.rollout.replay import without_replay
from jaxtrpo.rollout.types import ActorState, Best, TrainState
from jaxtrpo.runs.loggers import Logger
from jaxtrpo.runs.metrics import Row
from jaxtrpo.runs.output import Output
from jaxtrpo.runs.progress import NOTHING_DONE
from jaxtrpo.runs.termination import INTERRUPT_TYPES, STOP, Interrupts
from jaxtrpo.training.metrics import no_rows
from jaxtrpo.training.selection import begun_anew, best_evaluation, with_evaluation
from jaxtrpo.training.stopping import BY_CALLER, Stopping
from jaxtrpo.training.update import Update, gather, shapes_of

if TYPE_CHECKING:
    from jaxtrpo.training.run import Plan

# Returns False to stop the run, or the state with changed environments to continue from (see `jaxtrpo.set_env`).
OnUpdate = Callable[[Row, TrainState], object]


class Result(NamedTuple):
    """Result of a training run; its policy is the one that `Config.select` chooses, its state that of the end."""

    policy: TrainedPolicy  # callable on observations
    # Columns of metrics.csv; blanks are NaN. After a run without updates, the columns common to all algorithms, empty.
    metrics: dict[str, np.ndarray]
    state: TrainState  # at the end, on the actors' devices; those of `train_many` are without replay buffers
    config: Config  # all settings, including those that were chosen automatically

    def __repr__(self) -> str:
        """Names the environment and the algorithm, and says how far the run came."""
        steps, returns = self.metrics["env_steps"], self.metrics["return_100"]
        last = f"{returns[-1]:.1f}" if len(returns) else "nan"
        done = f"{int(steps[-1]) if len(steps) else 0:,} steps"
        return f"Result({self.policy.env_name}, {self.config.algorithm}, {done}, return_100 {last})"


def without_buffer(result: Result, update: Update) -> Result:
    """Returns the result of one run of many without the contents of its replay buffer, for which there may be no room.

    Args:
      result: of the run.
      update: functions of the run.
    """
    if update.learner.replay is None:
        return result
    return result._replace(state=result.state._replace(learner=without_replay(result.state.learner)))


class Record:
    """Records of a run while it trains: files, loggers and the latest state.

    With several processes, only the first writes files, but all must gather a state together, and agree on when.
    """

    def __init__(
        self,
        plan: Plan,
        metrics: Mapping[str, np.ndarray],
        state: Callable[[], TrainState],
        interrupts: Interrupts | None = None,
    ):
        """Starts the records; raises OutputError like `Output`.

        Args:
          plan: plan of the run.
          metrics: columns of the previous updates, if the run is resumed.
          state: returns the state after these updates.
          interrupts: interrupts of this process, which all processes handle at the same time; None if there is only one
            process.
        """
        self._plan, self._loggers, self._interrupts = plan, list[Logger](), interrupts
        # `on_update` may take one of the processes long.
        self._agreeing = CollectiveTimeout(least_seconds=None if plan.on_update is None else LONG_LATE_SECONDS)
        self._gathering = CollectiveTimeout()
        self._stopping = Stopping(plan.config, metrics)
        self._started = plan.started - (float(metrics["wall_seconds"][-1]) if metrics else 0.0)  # as if not interrupted
        self._changes = times_changed(plan.env)  # of the simulators, by `set_env`
        self._asked = False  # whether on_update has asked to stop
        self._changed: TrainState | None = None  # what on_update returned
        self.stopped = self._stopping.reason()  # why the run is over before its end; None if it is not
        # What was evaluated decides in place of what is in the state, which compiled programs have compared.
        self._chosen = best_evaluation(state(), metrics) if metrics else None
        # One attribute, so that an interrupt always finds a state with its number of updates.
        self._reached = self._reached_by(state, int(metrics["update"][-1]) if metrics else 0)
        self._writes = interrupts is None or is_first()
        directory = plan.directory if self._writes else None
        if interrupts is not None:
            self._reached.gathered()
        self._output = Output(
            directory,
            plan.saving,
            metrics,
            lambda place, metrics: plan.write(place, metrics, *self._gathered_state()),
            resumed=plan.saved is not None,
            outdated=plan.saved is not None and plan.saved.config.get("select", Config.select) != plan.config.select,
        )

    def _reached_by(self, state: Callable[[], TrainState], update: int) -> _Reached:
        reached = functools.cache(functools.partial(_with_best, state, self._chosen))

        def gathered() -> TrainState:
            with self._gathering() if self._interrupts is not None else nullcontext():
                return gather(reached())

        return _Reached(reached, functools.cache(gathered), update)

    def _gathered_state(self) -> tuple[TrainState, int]:
        return self._reached.gathered(), self._reached.update

    @property
    def last(self) -> Row:
        """Row of the last update."""
        return self._output.last or NOTHING_DONE

    @property
    def best(self) -> float:
        """Return of the best evaluation so far; minus infinity before the first."""
        return self._stopping.best

    def start_loggers(self, stack: ExitStack) -> None:
        """Starts the loggers, until the stack is closed."""
        begun = self._plan.loggers if self._writes else ()
        self._loggers = [stack.enter_context(closing(begin(self._output.last))) for begin in begun]

    def add(self, rows: Sequence[Row], state: Callable[[], TrainState], shown: Callable[[], TrainState]) -> None:
        """Adds rows of metrics; sets `stopped` if the run is to stop there.

        Args:
          rows: one for each update.
          state: returns the state after the last of them.
          shown: returns the state for `on_update`, see `Moment`.

        Raises:
          KeyboardInterrupt: a process was interrupted or terminated.
        """
        self._output.add(rows)
        value = rows[-1]["eval_return"]
        if value is not None and math.isfinite(value):
            self._chosen = with_evaluation(self._chosen, value, shown())
        self._reached = self._reached_by(state, int(rows[-1]["update"] or 0))
        for logger in self._loggers:
            logger.add(rows)
        own = shown is not state
        seen = functools.cache(functools.partial(_with_best, shown, self._chosen)) if own else self._reached.state
        asked = self._call(rows, state, seen)  # first, because a checkpoint contains what it changes
        agreed = self._agree(self._output.wants(len(rows)))
        self._write(lambda: self._output.keep(len(rows)), wanted=agreed > 0)
        self._stopping.add(rows)
        if self._changed is not None or times_changed(self._plan.env) > self._changes:
            self._changes = times_changed(self._plan.env)
            self._stopping.begin_anew()
        seconds = time.perf_counter() - self._started
        self.stopped = BY_CALLER if asked or agreed // 2 == STOP else self._stopping.reason(seconds)
        interrupt = INTERRUPT_TYPES[agreed // 2]
        if interrupt is not None:
            raise interrupt

    def _write(self, write: Callable[[], None], *, wanted: bool = True) -> None:
        """Writes in the first process, for which the others wait; without them if no process has anything to write."""
        if self._interrupts is None or not wanted:
            write()
        else:
            wait_together(write, self._plan.actors.agree)

    def _call(self, rows: Sequence[Row], state: Callable[[], TrainState], shown: Callable[[], TrainState]) -> bool:
        """Calls `on_update`, and returns whether the run is to stop now; several processes agree on that first."""
        if self._plan.on_update is None:
            return False
        answers = [plain(self._plan.on_update(dict(row), shown())) for row in rows]  # which may change its row
        self._asked |= any(each is False for each in answers)
        for answer in answers:
            if isinstance(answer, TrainState) and answer is not shown():
                self._require_changeable(answer, shown())
                self._changed = changed = begun_anew(state()._replace(actors=answer.actors))
                self._reached = self._reached_by(lambda changed=changed: changed, self._reached.update)
            elif isinstance(answer, ActorState | EnvState):
                raise ValueError(f"on_update returned {type_name(answer)}, which is not the state of the run")
        return self._asked and self._interrupts is None

    def _require_changeable(self, new: TrainState, old: TrainState) -> None:
        """Raises ValueError if a run cannot continue from the state that on_update returned."""
        others = [name for name in old._fields if name != "actors" and getattr(new, name) is not getattr(old, name)]
        if others or shapes_of(new.actors) != shapes_of(old.actors):
            raise ValueError(
                f"on_update returned a state with another {others[0] if others else 'shape'}; only values of its "
                "environments may differ (see jaxtrpo.set_env)"
            )
        if not self._plan.update.learner.waits or self._plan.update.trainings is not None:
            raise ValueError(
                "on_update returned a state, which is not supported with asynchronous actors, or by runs compiled as "
                "one program"
            )

    def take_changed(self) -> TrainState | None:
        """Returns the state that on_update returned since the last call, if it did."""
        changed, self._changed = self._changed, None
        return changed

    def _agree(self, wants: bool) -> int:
        """Returns twice the pending interrupt, plus 1 if a process wants to write: the largest over all processes.

        Gathers the state unless this is 0.
        """
        if self._interrupts is None:
            return 0
        with self._agreeing():
            pending = max(self._interrupts.pending, STOP * self._asked)
            agreed = self._plan.actors.agree(2 * pending + wants)
        if agreed:
            self._reached.gathered()
        return agreed

    def save(self) -> None:
        """Saves the latest state as a checkpoint."""
        if self._interrupts is not None:
            self._reached.gathered()
        self._write(self._output.save)

    def save_alone(self) -> None:
        """Saves a checkpoint after an error, unless there are other processes, which would have to gather it, too."""
        if self._interrupts is None:
            self._output.save()

    def result(self) -> Result:
        """Returns the result of the run so far."""
        state = self._reached.state()
        columns = self._output.metrics.columns() or no_rows(self._plan.update.hyperparameters())
        return Result(self._plan.policy_of(state), columns, state, self._plan.config)


def _with_best(state: Callable[[], TrainState], chosen: Best | None) -> TrainState:
    """Returns a state with the policy that evaluations have chosen, if there were any."""
    return state() if chosen is None else state()._replace(best=chosen)


class _Reached(NamedTuple):
    """State of a run after an update."""

    state: Callable[[], TrainState]  # on the actors' devices
    gathered: Callable[[], TrainState]  # gathered on the host
    update: int
