"""The interface of objects that step consecutive environments, and their creation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from jaxtrpo.envs.gymnasium.other_python import NamedSource
from jaxtrpo.envs.gymnasium.shared_arrays import Rows, RowSizes
from jaxtrpo.envs.gymnasium.single_envs import SingleEnvs
from jaxtrpo.envs.gymnasium.spec import Source
from jaxtrpo.envs.gymnasium.vector_envs import VectorEnvs


class Stepper(Protocol):
    """Steps environments through their rows; every method raises `SimulatorError` if a simulator fails."""

    def reset(self) -> None:
        """Starts the first episode of every environment."""
        ...

    def step(self, start: int, stop: int) -> None:
        """Steps the environments `start` to `stop - 1`, with automatic resets."""
        ...

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Sets attributes of every simulator."""
        ...

    def close(self) -> None:
        """Closes the simulators."""
        ...


class StepperConfig(NamedTuple):
    """Arguments of a stepper of consecutive environments, which can be sent to a worker process."""

    source: Source | NamedSource
    sizes: RowSizes  # sizes of the rows of all environments
    edges: tuple[int, ...]  # first index of each vector environment, or of all single ones; then the end of the last
    vector: bool  # use vector environments
    episode_length: int  # time limit in steps
    info: tuple[str, ...] = ()  # entries of `info` to report


def make_stepper(config: StepperConfig, rows: Rows) -> SingleEnvs | VectorEnvs:
    """Creates a stepper and its simulators in this process."""
    source = config.source
    if config.vector:
        return VectorEnvs(source.name, source.make_vector, rows, config.edges, config.episode_length, config.info)
    return SingleEnvs(source.name, source.make_single, rows, config.edges[0], config.edges[-1], config.info)
