"""What limits many actors: simulated on the cores there are, and on paper for many machines.

    pip install '.[experiments]'
    python experiments/scaling.py [--quick] [--hosts]

HalfCheetah is trained by 1 to 16 actors of one process, each with environments and steps of its own, so that there are
more actors than cores; once as few actors do it (one fits the critic to everyone's samples), once as many do it (each
to its own; see `shared_from` of the critic mlp). Sums and gatherings are timed between two processes. From both follows
what an update would take on many machines. Written to experiments/results/scaling/.

With --hosts, which needs Linux and root, collectives and updates are timed on hosts that are network namespaces of this
machine, for several delays; the rest of the results stays as it was.
"""

from __future__ import annotations

import csv
import json
import os
import socket
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
from common.hosts import Host, has_netem, why_not
from common.hosts import hosts as network_of
from common.machine import machine
from common.runs import TRAIN, as_flags
from common.tables import write_csv
from jaxtrpo.parallel.collectives import gather_envs, sum_over_actors
from jaxtrpo.parallel.devices import choose_actors
from jaxtrpo.parallel.machine import ADDRESS, COUNT, INDEX, available_cores
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
DELAYS = (0.0, 0.1, 1.0)  # milliseconds each way, between hosts
WITH_HOSTS = {1_024: 16, 20_480: 128}  # steps of an update of two hosts, and environments
UPDATES_WITH_HOSTS = {1_024: 100, 20_480: 14}
MEASURED = "hosts.csv"


class Learning(NamedTuple):
    """Medians of updates, milliseconds."""

    collect: float
    learn: float


class Meeting(NamedTuple):
    """What a sum and a gathering of two processes take."""

    hop: float  # milliseconds for a message of nothing
    byte: float  # milliseconds

    @classmethod
    def of(cls, small: float, large: float) -> Meeting:
        """From milliseconds for sums of one number and of a mebibyte by two processes."""
        return cls(small / 2, (large - small) / 2**20)

    def of_update(self, hosts: int, steps: int) -> float:
        """Of an update in which one fits the critic; each has so many steps."""
        return self.gather(hosts, steps * STEP_BYTES) + self.sum(hosts, 5 * NETWORK_BYTES)

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
    """One of the processes: prints the milliseconds of a sum and a gathering, of one number and of a mebibyte."""
    join(None)
    number = int(os.environ[COUNT])
    actors, found = choose_actors(number, processes=number), {}
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
    said = {ADDRESS: f"127.0.0.1:{free_port()}", COUNT: "2", "JAX_NUM_CPU_DEVICES": "1"}
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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def everywhere(network: list[Host], command: list[str]) -> str:
    """Runs a command on each host, on a core of its own if there are enough; returns what the first host prints."""
    said = {ADDRESS: f"{network[0].address}:{free_port()}", COUNT: str(len(network)), "JAX_NUM_CPU_DEVICES": "1"}
    cores = sorted(os.sched_getaffinity(0))
    # gloo's threads do not preempt others (see `choose_actors`), so that any other program's would cost 4 ms, a tick.
    priority = ["chrt", "--rr", "1"]
    started = [
        host.start(
            [*priority, "taskset", "--cpu-list", str(cores[host.index % len(cores)]), *command],
            {**os.environ, **said, INDEX: str(host.index)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for host in network
    ]
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"a host ended with an error: {command}")
    return outputs[0]


def measure_hosts(path: Path, *, quick: bool) -> None:
    """Writes what collectives take on two and four hosts, and updates on two."""
    table = []
    for delay in DELAYS:
        for number in (2, 4):
            with network_of(number, delay) as network:
                costs = json.loads(everywhere(network, [sys.executable, __file__, MEET]).splitlines()[-1])
                table += [(number, delay, "netem" if has_netem() else "process", *each) for each in costs.items()]
    for steps, environments in WITH_HOSTS.items():
        updates = 2 * SKIPPED if quick else UPDATES_WITH_HOSTS[steps]
        settings = {"num_envs": environments, "steps_per_update": steps, "total_steps": steps * updates}
        took: dict[float, list[float]] = {delay: [] for delay in DELAYS}
        for delay in (*DELAYS, *reversed(DELAYS)):
            with network_of(2, delay) as network, tempfile.TemporaryDirectory() as folder:
                words = as_flags({**settings, "actors": 2, "adapt": "fixed"})
                everywhere(network, [*TRAIN, TASK, "--quiet", "--out", f"{folder}/run", *words])
                metrics = load_checkpoint(Path(folder) / "run").metrics
            took[delay] += list(1e3 * np.diff(metrics["wall_seconds"][SKIPPED:]))
        for delay, each in took.items():
            quartile = float(np.percentile(each, 25))
            table.append((2, delay, "netem" if has_netem() else "process", f"update {steps}", quartile))
            print(*table[-1], flush=True)
    write_csv(path, ("hosts", "delay_ms", "delayed_by", "what", "ms"), table)


def measured_hosts(path: Path) -> list[str]:
    """Lines of the summary; nothing has been measured if there are none."""
    if not path.exists():
        return []
    with path.open() as file:
        rows = list(csv.DictReader(file))
    found = {(int(row["hosts"]), float(row["delay_ms"]), row["what"]): float(row["ms"]) for row in rows}
    delays = sorted({key[1] for key in found})
    how = "netem" if rows[0]["delayed_by"] == "netem" else "a process of ours, since this kernel has no netem"

    def collectives(delay: float, steps: int) -> float:
        meeting = Meeting.of(found[2, delay, "sum 4"], found[2, delay, "sum 1048576"])
        # And the numbers on which all agree after an update.
        return meeting.of_update(2, steps // 2) + meeting.sum(2, 4)

    lines = [
        "## Measured: hosts that are network namespaces",
        "",
        "`python experiments/scaling.py --hosts`. Each host has an address, a name, and a core at real-time priority "
        f"(four hosts share two cores); a packet is delayed each way, by {how}. Milliseconds, medians.",
        "",
        "| hosts | delay each way, ms | sum of 4 bytes | sum of 1 MiB | gathering 4 bytes | gathering 1 MiB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    kinds = "sum 4", "sum 1048576", "gather 4", "gather 1048576"
    for number in (2, 4):
        lines += [
            f"| {number} | {delay:g} | {' | '.join(f'{found[number, delay, kind]:.2f}' for kind in kinds)} |"
            for delay in delays
        ]
    lines += [
        "",
        "Updates of HalfCheetah on two hosts, one actor each. Computed: the update without delay, and what the "
        "collectives take longer by the formula above, with the costs in the table. Lower quartiles of all updates of "
        "two runs, since the machine was shared.",
        "",
        "| steps of an update | delay each way, ms | update, ms | speed kept, measured | speed kept, computed |",
        "| --- | --- | --- | --- | --- |",
    ]
    for steps in WITH_HOSTS:
        alone = found[2, 0.0, f"update {steps}"]
        for delay in delays:
            took = found[2, delay, f"update {steps}"]
            more = collectives(delay, steps) - collectives(0.0, steps)
            lines.append(f"| {steps:,} | {delay:g} | {took:.1f} | {alone / took:.2f} | {alone / (alone + more):.2f} |")
    return ["", *lines]


def paper(
    steps: int, one: Learning, without_fit: Learning, costs: Mapping[str, float]
) -> Iterator[tuple[int, float, float]]:
    """Hosts of one actor each, and what an update would take: as few actors do it, and shared; milliseconds."""
    fit, step = one.learn - without_fit.learn, without_fit.learn
    meeting = Meeting.of(costs["sum 4"], costs["sum 1048576"])
    for hosts in HOSTS:
        few = meeting.of_update(hosts, steps)
        many = PASSES * meeting.sum(hosts, 3 * NETWORK_BYTES) + OTHERS * meeting.sum(hosts, NETWORK_BYTES)
        alone = one.collect + fit + step
        yield (
            hosts,
            alone if hosts == 1 else one.collect + max(hosts * fit, hosts * step) + few,
            alone if hosts == 1 else alone + many,
        )


HEADING = "\n## Measured: hosts"


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
    parser = options(__doc__)
    parser.add_argument("--hosts", action="store_true", help="time hosts that are network namespaces, and nothing else")
    arguments = parser.parse_args()
    folder = extent_of("scaling", (), quick=arguments.quick).folder
    readme, measured = folder / "README.md", folder / MEASURED
    if arguments.hosts:
        if (why := why_not()) is not None:
            raise SystemExit(f"--hosts: {why}")
        measure_hosts(measured, quick=arguments.quick)
        before = readme.read_text().split(HEADING)[0] if readme.exists() else ""
        readme.write_text(before + "\n".join(measured_hosts(measured)) + "\n")
        print(readme.read_text())
        return
    sizes, simulated = (list(SIZES)[:1], SIMULATED[:2]) if arguments.quick else (SIZES, SIMULATED)
    updates = SKIPPED + 4 if arguments.quick else UPDATES
    found = {
        (steps, actors, critic): train(actors, steps, critic, updates)
        for steps in sizes
        for actors in simulated
        for critic in ((ONE_FITS, "none") if actors == 1 else (ONE_FITS, SHARED))
    }
    text = summary(found, meetings()) + "".join(f"{line}\n" for line in measured_hosts(measured))
    readme.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
