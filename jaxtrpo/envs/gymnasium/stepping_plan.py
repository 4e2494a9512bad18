"""What is known of an environment before any of its simulators is started for good."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtrpo.envs.gymnasium.actions import Actions
from jaxtrpo.envs.gymnasium.shared_arrays import RowSizes
from jaxtrpo.envs.gymnasium.spec import Source
from jaxtrpo.envs.gymnasium.steppers import Task
from jaxtrpo.envs.observations import Observations
from jaxtrpo.parallel.machine import available_cores

# How much longer a step takes for each process that an actor waits for, apart from the simulators: the way there and
# back through a socket. Measured on two cores that were busy with other things: 35 us for one process, 55 us each for
# two.
SECONDS_A_PROCESS = 50e-6
# A vector environment has one seed, so that what its environments do depends on how many it has: with at least two of
# them, whatever the number of actors, one and two actors collect the same.
LEAST_VECTORS = 2


@dataclass(frozen=True)
class Plan:
    """How to step an environment."""

    source: Source
    observations: Observations
    actions: Actions
    episode_length: int  # steps
    vector: bool  # it comes as a vector environment
    jax_inside: bool  # it may call JAX, which must not happen in the calling thread
    seconds_per_step: float  # of one environment; of all together where `vector`
    processes: int | None  # None: as many as pay
    groups: int  # actors that step it at the same time
    timeout: float  # seconds

    def sizes(self, num_envs: int) -> RowSizes:
        """The rows of `num_envs` environments."""
        return RowSizes(num_envs, self.observations.size, self.actions.size, self.actions.flat_dtype.name)

    def tasks(self, num_envs: int) -> tuple[list[Task], bool]:
        """How `num_envs` environments are dealt out, and whether to processes."""
        processes = self.num_processes(num_envs)
        group_edges = _edges(num_envs, self._groups)
        parts = _edges(num_envs, max(processes, 1))
        tasks = []
        for start, stop in zip(parts[:-1], parts[1:], strict=True):
            inner = [edge for edge in group_edges if start < edge < stop] if self.vector else []
            task = Task(self.source, self.sizes(num_envs), (start, *inner, stop), self.vector, self.episode_length)
            tasks.append(task)
        return tasks, processes > 0

    def serves(self, actors: int) -> bool:
        """Whether no two of so many actors would step environments of one vector environment."""
        return self._groups % actors == 0 if self.vector else True

    @property
    def _groups(self) -> int:
        return max(self.groups, LEAST_VECTORS) if self.vector else self.groups

    def num_processes(self, num_envs: int) -> int:
        """How many processes step `num_envs` environments; 0: the calling thread does."""
        if self.processes is not None:
            return min(self.processes, num_envs)
        cores = available_cores()
        if cores == 1 and not self.jax_inside:
            return 0
        # More vector environments than groups would be other ones: what an environment does must not depend on time.
        most = min(cores, self._groups if self.vector else num_envs)
        num = next(num for num in range(most, 0, -1) if num_envs % num == 0)
        # Without processes only one thread at a time steps environments, because Python has one lock for all.
        alone = self.seconds_per_step * (min(self._groups, num_envs) if self.vector else num_envs)
        pays = num > 1 and alone - alone / num > SECONDS_A_PROCESS * -(-num // self.groups)
        return num if pays or self.jax_inside else 0


def _edges(num: int, parts: int) -> list[int]:
    """Where `parts` consecutive parts of `num` begin, as equal as possible, and where the last one ends."""
    parts = min(parts, num)
    return [num * part // parts for part in range(parts + 1)]
