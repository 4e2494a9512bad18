"""What goes wrong inside a simulator, in one sentence and with the simulator's own traceback."""

from __future__ import annotations

import traceback

from jaxtrpo.config.messages import described


class SimulatorError(RuntimeError):
    """A simulator raised, broke Gymnasium's interface, was too slow, or its process ended."""


def raised(name: str, what: str, error: BaseException) -> SimulatorError:
    """The error for an exception that left a simulator's `what`, such as "step()": a sentence, then the traceback."""
    inside = error.__traceback__ and error.__traceback__.tb_next  # without the line of ours that called it
    lines = "".join(traceback.format_exception(type(error), error, inside or error.__traceback__))
    return SimulatorError(f"{name}: {what} raised {described(error)}\n\n{lines.rstrip()}")


def sentence(error: SimulatorError) -> str:
    """The same without the traceback."""
    return str(error).partition("\n\n")[0]
