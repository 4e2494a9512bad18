"""Records of a run while it trains: files, loggers and the latest state."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jaxtrpo.config import Config
from jaxtrpo.parallel.processes import CollectiveTimeout, is_first
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.rollout.types import TrainState
from jaxtrpo.runs.loggers import Logger
from jaxtrpo.runs.metrics import Row
from jaxtrpo.runs.output import Output
from jaxtrpo.runs.progress import NOTHING_DONE
from jaxtrpo.runs.termination import INTERRUPT_TYPES, Interrupts
from jaxtrpo.training.metrics import no_rows
from jaxtrpo.training.update import gather

if TYPE_CHECKING:
    from jaxtrpo.training.run import Plan

OnUpdate = Callable[[Row, TrainState], object]


class Result(NamedTuple):
    """Result of a training run."""

    policy: TrainedPolicy  # callable on observations
    # Columns of metrics.csv; blanks are NaN. Without any update, the columns that all algorithms have, empty.
    metrics: dict[str, np.ndarray]
    state: TrainState  # complete state, on the actors' devices
    config: Config


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
        self._timeout = CollectiveTimeout()
        # One attribute, so that an interrupt always finds a state with its number of updates.
        self._reached = self._reached_by(state, int(metrics["update"][-1]) if metrics else 0)
        self._writes = interrupts is None or is_first()
        directory = plan.directory if self._writes else None
        if interrupts is not None:
            self._reached.gathered()
        self._output = Output(
            directory, plan.saving, metrics, lambda place, metrics: plan.write(place, metrics, *self._gathered_state())
        )

    def _reached_by(self, state: Callable[[], TrainState], update: int) -> _Reached:
        return _Reached(state, functools.cache(lambda: gather(state())), update)

    def _gathered_state(self) -> tuple[TrainState, int]:
        return self._reached.gathered(), self._reached.update

    @property
    def last(self) -> Row:
        """Row of the last update."""
        return self._output.last or NOTHING_DONE

    def start_loggers(self, stack: ExitStack) -> None:
        """Starts the loggers, until the stack is closed."""
        begun = self._plan.loggers if self._writes else ()
        self._loggers = [stack.enter_context(closing(begin(self._output.last))) for begin in begun]

    def add(self, rows: Sequence[Row], state: Callable[[], TrainState]) -> None:
        """Adds rows of metrics, and the state after the last of them.

        Raises:
          KeyboardInterrupt: a process was interrupted or terminated.
        """
        self._output.add(rows)
        self._reached = self._reached_by(state, int(rows[-1]["update"] or 0))
        for logger in self._loggers:
            logger.add(rows)
        agreed = self._agree(self._output.wants(len(rows)))
        self._output.keep(len(rows))
        if agreed:
            self._plan.actors.agree(0)  # without a timeout: the first process may write for long
        if self._plan.on_update is not None:
            for row in rows:
                self._plan.on_update(row, state())
        interrupt = INTERRUPT_TYPES[agreed // 2]
        if interrupt is not None:
            raise interrupt

    def _agree(self, wants: bool) -> int:
        """Returns twice the pending interrupt, plus 1 if a process wants to write: the largest over all processes.

        Gathers the state unless this is 0.
        """
        if self._interrupts is None:
            return 0
        with self._timeout():
            agreed = self._plan.actors.agree(2 * self._interrupts.pending + wants)
        if agreed:
            self._reached.gathered()
        return agreed

    def save(self) -> None:
        """Saves the latest state as a checkpoint."""
        if self._interrupts is not None:
            self._reached.gathered()
        self._output.save()

    def save_alone(self) -> None:
        """Saves a checkpoint after an error, unless there are other processes, which would have to gather it, too."""
        if self._interrupts is None:
            self._output.save()

    def result(self) -> Result:
        """Returns the result of the run so far."""
        state = self._reached.state()
        columns = self._output.metrics.columns() or no_rows(self._plan.update.hyperparameters())
        return Result(self._plan.policy_of(state), columns, state, self._plan.config)


class _Reached(NamedTuple):
    """State of a run after an update."""

    state: Callable[[], TrainState]  # on the actors' devices
    gathered: Callable[[], TrainState]  # gathered on the host
    update: int
