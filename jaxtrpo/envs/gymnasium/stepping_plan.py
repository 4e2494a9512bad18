"""How an environment is stepped: its spaces, and the distribution of simulators over processes."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtrpo.envs.gymnasium.actions import Actions
from jaxtrpo.envs.gymnasium.other_python import NamedSource
from jaxtrpo.envs.gymnasium.shared_arrays import RowSizes
from jaxtrpo.envs.gymnasium.spec import Source
from jaxtrpo.envs.gymnasium.steppers import StepperConfig
from jaxtrpo.envs.observations import Observations
from jaxtrpo.parallel.machine import available_cores

# Overhead of a step per process that an actor waits for: the round trip through a socket. Measured on two busy cores:
# 35 us for one process, 55 us each for two.
SECONDS_PER_PROCESS = 50e-6
# A vector environment has one seed, so its trajectories depend on its number of environments. With at least two vector
# environments, one actor and two actors collect the same data.
MIN_VECTOR_ENVS = 2
SUCCESS, SUCCESS_COLUMN = "is_success", "success_rate"


@dataclass(frozen=True)
class SteppingPlan:
    """How to step an environment."""

    source: Source | NamedSource
    observations: Observations
    actions: Actions
    episode_length: int  # time limit in steps
    vector: bool  # use vector environments
    needs_processes: bool  # it cannot be stepped in the calling thread, because it may call JAX or needs another Python
    seconds_per_step: float  # of one environment; of a vector environment if `vector`
    processes: int | None  # worker processes; None: chosen by `num_processes`
    groups: int  # number of actors that step environments concurrently
    timeout: float  # seconds that a worker may take for a step
    reports_success: bool = False  # whether `info` of a step has the entry `SUCCESS`
    envs_per_vector: int | None = None  # of a function that makes vector environments
    info: tuple[tuple[str, str], ...] = ()  # columns to report, and the entries of `info` that they hold

    def sizes(self, num_envs: int) -> RowSizes:
        """Sizes of the rows of `num_envs` environments."""
        seen, actions = self.observations, self.actions
        return RowSizes(num_envs, seen.size, actions.size, actions.flat_dtype.name, len(self.info), seen.pixels)

    def steppers(self, num_envs: int) -> tuple[list[StepperConfig], bool]:
        """Returns the steppers that share `num_envs` environments, and whether they run in worker processes."""
        processes, each = self.num_processes(num_envs), self.envs_per_vector
        group_edges = _edges(num_envs, self._groups) if each is None else list(range(0, num_envs, each))
        parts = [edge * (each or 1) for edge in _edges(num_envs // (each or 1), max(processes, 1))]
        configs = []
        for start, stop in zip(parts[:-1], parts[1:], strict=True):
            inner = [edge for edge in group_edges if start < edge < stop] if self.vector else []
            edges = (start, *inner, stop)
            info = tuple(entry for _, entry in self.info)
            sizes, vector = self.sizes(num_envs), self.vector
            configs.append(StepperConfig(self.source, sizes, edges, vector, self.episode_length, info))
        return configs, processes > 0

    def serves(self, actors: int) -> bool:
        """Returns whether no two of `actors` would share a vector environment."""
        if self.envs_per_vector is not None:  # numbers of environments are checked against it
            return True
        return self._groups % actors == 0 if self.vector else True

    @property
    def _groups(self) -> int:
        return max(self.groups, MIN_VECTOR_ENVS) if self.vector else self.groups

    def num_processes(self, num_envs: int) -> int:
        """Returns the number of worker processes for `num_envs` environments; 0: the calling thread steps them."""
        units = num_envs // (self.envs_per_vector or 1)
        if self.processes is not None:
            return min(self.processes, units)
        cores = available_cores()
        if cores == 1 and not self.needs_processes:
            return 0
        # The number of vector environments determines their trajectories, so it must not depend on timing.
        vectors = min(self._groups, num_envs) if self.envs_per_vector is None else units
        most = min(cores, vectors if self.vector else num_envs)
        num = next(num for num in range(most, 0, -1) if units % num == 0)
        # Without processes, only one thread at a time steps environments, because of Python's global interpreter lock.
        serial = self.seconds_per_step * (vectors if self.vector else num_envs)
        faster = num > 1 and serial - serial / num > SECONDS_PER_PROCESS * -(-num // self.groups)
        return num if faster or self.needs_processes else 0


def _edges(num: int, parts: int) -> list[int]:
    """Returns the boundaries of `parts` consecutive parts of `num`, whose sizes differ by at most 1."""
    parts = min(parts, num)
    return [num * part // parts for part in range(parts + 1)]
