"""Errors of simulators, with a one-line message and the simulator's own traceback."""

from __future__ import annotations

import traceback

from jaxtrpo.config.messages import described

# What code of simulators may raise; some end the interpreter when their window is closed.
RAISED = (Exception, SystemExit)


class SimulatorError(RuntimeError):
    """A simulator raised an exception, violated Gymnasium's interface or timed out, or its process ended."""


def simulator_error(name: str, what: str, error: BaseException) -> SimulatorError:
    """Wraps an exception that `what`, such as "step()", raised: a one-line message, then the traceback."""
    inside = error.__traceback__ and error.__traceback__.tb_next  # skips the calling frame
    lines = "".join(traceback.format_exception(type(error), error, inside or error.__traceback__))
    return SimulatorError(f"{name}: {what} raised {described(error)}\n\n{lines.rstrip()}")


def without_traceback(error: SimulatorError) -> str:
    """Returns the one-line message of an error."""
    return str(error).partition("\n\n")[0]
