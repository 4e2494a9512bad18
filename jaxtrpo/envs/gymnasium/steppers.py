"""Some of the environments, in whatever process, and however their simulators come."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from jaxtrpo.envs.gymnasium.shared_arrays import Rows, RowSizes
from jaxtrpo.envs.gymnasium.single_envs import Singles
from jaxtrpo.envs.gymnasium.spec import Source
from jaxtrpo.envs.gymnasium.vector_envs import Vectors


class Stepper(Protocol):
    """Steps environments through their rows; each method raises `SimulatorError` where a simulator fails."""

    def reset(self) -> None:
        """Starts the first episode of every environment."""
        ...

    def step(self, start: int, stop: int) -> None:
        """One step of environments `start` to `stop - 1`."""
        ...

    def close(self) -> None:
        """Ends the simulators."""
        ...


class Task(NamedTuple):
    """What is needed to make simulators for consecutive environments."""

    source: Source
    sizes: RowSizes  # of all environments
    edges: tuple[int, ...]  # where each vector environment begins, or the single ones; then where the last one ends
    vector: bool
    episode_length: int  # steps


def make_stepper(task: Task, rows: Rows) -> Singles | Vectors:
    """Makes the simulators of a task in this process."""
    source = task.source
    if task.vector:
        return Vectors(source.name, source.make_vector, rows, task.edges, task.episode_length)
    return Singles(source.name, source.make_single, rows, task.edges[0], task.edges[-1])
