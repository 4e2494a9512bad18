"""What a run leaves while it trains: files, loggers, and the state that it has reached."""

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
    """What a training run leaves."""

    policy: TrainedPolicy  # callable on observations
    # The columns of metrics.csv; blanks are NaN. Before the first update those that all algorithms have, empty.
    metrics: dict[str, np.ndarray]
    state: TrainState  # everything, on the actors' devices
    config: Config


class Record:
    """What a run leaves while it trains: its files, what others are told, and the state that it has reached.

    Of several processes only the first has files, but a state is gathered by all: they agree on when.
    """

    def __init__(
        self,
        plan: Plan,
        metrics: Mapping[str, np.ndarray],
        state: Callable[[], TrainState],
        interrupts: Interrupts | None = None,
    ):
        """Begins with a state, that of the last of `metrics`; OutputError is raised as by `Output`.

        Args:
          plan: of the run.
          metrics: columns of the updates before, if it is resumed.
          state: gives it when asked.
          interrupts: of this process, that all processes obey at the same time; None if there is only one.
        """
        self._plan, self._loggers, self._interrupts = plan, list[Logger](), interrupts
        self._timeout = CollectiveTimeout()
        # One name: an interrupt finds a state and the number of updates that led to it.
        self._reached = self._gathered(state, int(metrics["update"][-1]) if metrics else 0)
        self._speaks = interrupts is None or is_first()
        directory = plan.directory if self._speaks else None
        if interrupts is not None:
            self._reached.home()
        self._output = Output(
            directory, plan.saving, metrics, lambda place, metrics: plan.write(place, metrics, *self._at_home())
        )

    def _gathered(self, state: Callable[[], TrainState], update: int) -> _Reached:
        return _Reached(state, functools.cache(lambda: gather(state())), update)

    def _at_home(self) -> tuple[TrainState, int]:
        return self._reached.home(), self._reached.update

    @property
    def last(self) -> Row:
        """Row of the last update."""
        return self._output.last or NOTHING_DONE

    def start_loggers(self, stack: ExitStack) -> None:
        """Begins to tell others its metrics, until the stack is closed."""
        begun = self._plan.loggers if self._speaks else ()
        self._loggers = [stack.enter_context(closing(begin(self._output.last))) for begin in begun]

    def add(self, rows: Sequence[Row], state: Callable[[], TrainState]) -> None:
        """Takes in updates, and the state that they led to.

        Raises:
          KeyboardInterrupt: one of the processes was interrupted or terminated.
        """
        self._output.add(rows)
        self._reached = self._gathered(state, int(rows[-1]["update"] or 0))
        for logger in self._loggers:
            logger.add(rows)
        agreed = self._agree(self._output.wants(len(rows)))
        self._output.keep(len(rows))
        if agreed:
            self._plan.actors.agree(0)  # without patience: the first process writes for as long as it takes
        if self._plan.on_update is not None:
            for row in rows:
                self._plan.on_update(row, state())
        interrupt = INTERRUPT_TYPES[agreed // 2]
        if interrupt is not None:
            raise interrupt

    def _agree(self, wants: bool) -> int:
        """Returns twice the pending interrupt, plus whether the first process wants to write, of all processes.

        If it is not 0, the state is gathered.
        """
        if self._interrupts is None:
            return 0
        with self._timeout():
            agreed = self._plan.actors.agree(2 * self._interrupts.pending + wants)
        if agreed:
            self._reached.home()
        return agreed

    def save(self) -> None:
        """Makes what was reached a checkpoint."""
        if self._interrupts is not None:
            self._reached.home()
        self._output.save()

    def save_alone(self) -> None:
        """The same where something went wrong: other processes do not know of it, so nothing is left to be gathered."""
        if self._interrupts is None:
            self._output.save()

    def result(self) -> Result:
        """What is left in the end."""
        state = self._reached.state()
        columns = self._output.metrics.columns() or no_rows(self._plan.update.hyperparameters())
        return Result(self._plan.policy_of(state), columns, state, self._plan.config)


class _Reached(NamedTuple):
    """Where a run is."""

    state: Callable[[], TrainState]  # on the actors' devices
    home: Callable[[], TrainState]  # gathered
    update: int
