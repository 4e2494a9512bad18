"""What limits many actors: simulated on the cores there are, and on paper for many machines.

    pip install '.[experiments]'
    python experiments/scaling.py [--quick]

HalfCheetah is trained by 1 to 16 actors of one process, each with environments and steps of its own, so that there are
more actors than cores; once as few actors do it (one fits the critic to everyone's samples), once as many do it (each
to its own; see `shared_from` of the critic mlp). Sums and gatherings are timed between two processes. From both follows
what an update would take on many machines. Written to experiments/results/scaling/.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from common.comparison import extent_of, options
from common.machine import machine
from common.runs import TRAIN, as_flags
from jaxtrpo.parallel.collectives import gather_envs, sum_over_actors
from jaxtrpo.parallel.connections import LOOPBACK, free_port
from jaxtrpo.parallel.devices import choose_actors
from jaxtrpo.parallel.group import ADDRESS, COUNT, INDEX
from jaxtrpo.parallel.machine import available_cores
from jaxtrpo.parallel.processes import join
from jaxtrpo.runs.checkpoint import load_checkpoint

TASK = "HalfCheetah-v5"
SIZES = {1_024: 16, 10_240: 128}  # steps of an actor in an update, and its environments
SIMULATED, HOSTS = (1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32, 64)
ONE_FITS, SHARED = "mlp(shared_from=100000)", "mlp(shared_from=2)"
UPDATES, SKIPPED = 24, 4  # of a run; the first wait for what is compiled
STEP_BYTES, NETWORK_BYTES = 27 * 4, 23_000  # of what is learned from a step, and of a network's parameters
PASSES, OTHERS = 10, 15  # meetings of a shared update: passes of the fit, each of parameters and moments; and others
AT_ONCE = 10  # meetings in a program that is timed
MEET = "--meet"  # what this script tells itself


class Learning(NamedTuple):
    """Medians of updates, milliseconds."""

    collect: float
    learn: float


class Meeting(NamedTuple):
    """What a sum and a gathering of two processes take."""

    hop: float  # milliseconds for a message of nothing
    byte: float  # milliseconds

    def sum(self, hosts: int, number: float) -> float:
        """Of so many bytes, on a ring: everyone sends a part of them, twice around."""
        return 2 * (hosts - 1) * (self.hop + self.byte * number / hosts)

    def gather(self, hosts: int, number: float) -> float:
        """Of so many bytes of each, on a ring."""
        return (hosts - 1) * (self.hop + self.byte * number)


def train(actors: int, steps: int, critic: str, updates: int) -> Learning:
    """One process with so many actors, each of which steps environments of its own."""
    settings = {
        "actors": actors,
        "num_envs": SIZES[steps] * actors,
        "steps_per_update": steps * actors,
        "total_steps": steps * actors * updates,
        "adapt": "fixed",
        "critic": critic,
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [*TRAIN, TASK, "--quiet", "--out", str(out), *as_flags(settings)]
        environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(actors)}
        subprocess.run(command, check=True, env=environment, capture_output=True)
        metrics = load_checkpoint(out).metrics
    return Learning(*(1e3 * float(np.median(metrics[f"{part}_seconds"][SKIPPED:])) for part in Learning._fields))


def meet() -> None:
    """One of two processes: prints the milliseconds of a sum and a gathering, of one number and of a mebibyte."""
    join(2)
    actors, found = choose_actors(2, together=2), {}
    for kind, together in (("sum", sum_over_actors), ("gather", lambda vector: gather_envs(vector, axis=0))):
        for size in (1, 2**18):
            found[f"{kind} {4 * size}"] = milliseconds(
                actors.map(one_after_another(together)), actors.replicate(np.ones(size, np.float32))
            )
    print(json.dumps(found), flush=True)


def one_after_another(together: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """Meetings each of which needs what the one before gave."""

    def function(vector: jax.Array) -> jax.Array:
        for _ in range(AT_ONCE):
            vector = 0.5 * together(vector)[: vector.size]
        return vector

    return function


def milliseconds(function: Callable[[jax.Array], jax.Array], argument: jax.Array) -> float:
    seconds = []
    for _ in range(41):  # the first compiles
        begin = time.perf_counter()
        jax.block_until_ready(function(argument))
        seconds.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(seconds[1:]) / AT_ONCE


def meetings() -> dict[str, float]:
    """What two processes on this machine say, each with one device."""
    said = {ADDRESS: f"{LOOPBACK}:{free_port(LOOPBACK)}", COUNT: "2", "JAX_NUM_CPU_DEVICES": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, MEET],
            env={**os.environ, **said, INDEX: str(index)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    outputs = [process.communicate()[0] for process in started]
    return json.loads(outputs[0].splitlines()[-1])


def paper(
    steps: int, one: Learning, without_fit: Learning, costs: Mapping[str, float]
) -> Iterator[tuple[int, float, float]]:
    """Hosts of one actor each, and what an update would take: as few actors do it, and shared; milliseconds."""
    fit, step = one.learn - without_fit.learn, without_fit.learn
    small, large = costs["sum 4"], costs["sum 1048576"]
    meeting = Meeting(small / 2, (large - small) / 2**20)
    for hosts in HOSTS:
        few = meeting.gather(hosts, steps * STEP_BYTES) + meeting.sum(hosts, 5 * NETWORK_BYTES)
        many = PASSES * meeting.sum(hosts, 3 * NETWORK_BYTES) + OTHERS * meeting.sum(hosts, NETWORK_BYTES)
        alone = one.collect + fit + step
        yield (
            hosts,
            alone if hosts == 1 else one.collect + max(hosts * fit, hosts * step) + few,
            alone if hosts == 1 else alone + many,
        )


def summary(found: Mapping[tuple[int, int, str], Learning], costs: Mapping[str, float]) -> str:
    lines = [
        "# What limits many actors?",
        "",
        f"`python experiments/scaling.py` on {machine()}. HalfCheetah, every actor with steps and environments of its "
        "own; milliseconds, medians of updates.",
        "",
        "## Simulated: more actors than cores",
        "",
        f"Actors of one process on {available_cores()} cores. Collecting for each actor: the time of all, times cores, "
        "over actors; it would not change if each had a core. Learning: of a whole update; one fits the critic to "
        "everyone's samples while another finds the step, or all share both.",
        "",
        "| steps of an actor | actors | collecting, for each actor | learning, one fits | learning, shared |",
        "| --- | --- | --- | --- | --- |",
    ]
    for steps, actors in dict.fromkeys(key[:2] for key in found):
        one, shared = (found.get((steps, actors, critic)) for critic in (ONE_FITS, SHARED))
        assert one is not None
        each = one.collect * min(available_cores(), actors) / actors
        cells = f"{each:.1f} | {one.learn:.1f} | {f'{shared.learn:.1f}' if shared else '-'}"
        lines.append(f"| {steps:,} | {actors} | {cells} |")
    lines += [
        "",
        "## Meetings of two processes",
        "",
        *(f"- {kind} bytes: {value:.2f} ms" for kind, value in costs.items()),
        "",
        "## On paper: hosts of one actor each",
        "",
        "From one actor's collecting, step and fit, and from meetings on a ring (what gloo does), whose messages take "
        f"as long as between the two processes. Shared: {PASSES} meetings of the fit and {OTHERS} others. Efficiency: "
        "of one host's update, which has no meetings.",
        "",
        "| steps of a host | hosts | one fits, ms | efficiency | shared, ms | efficiency |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for steps in dict.fromkeys(key[0] for key in found):
        rows = list(paper(steps, found[steps, 1, ONE_FITS], found[steps, 1, "none"], costs))
        alone = rows[0][1]
        for hosts, few, many in rows:
            lines.append(f"| {steps:,} | {hosts} | {few:.0f} | {alone / few:.2f} | {many:.0f} | {alone / many:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    if MEET in sys.argv:
        meet()
        return
    arguments = options(__doc__).parse_args()
    folder = extent_of("scaling", (), quick=arguments.quick).folder
    sizes, simulated = (list(SIZES)[:1], SIMULATED[:2]) if arguments.quick else (SIZES, SIMULATED)
    updates = SKIPPED + 4 if arguments.quick else UPDATES
    found = {
        (steps, actors, critic): train(actors, steps, critic, updates)
        for steps in sizes
        for actors in simulated
        for critic in ((ONE_FITS, "none") if actors == 1 else (ONE_FITS, SHARED))
    }
    text = summary(found, meetings())
    (folder / "README.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
