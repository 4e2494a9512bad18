"""What bounds each stage of an update on an accelerator, and from how many environments on? Counted, without one.

    pip install '.[experiments]'
    python experiments/bounds.py [--quick]

Compiles updates, here for a CPU, counts what every stage computes, moves and starts (common/costs.py), and compares
this with the peaks of an NVIDIA H100. How long the launch of a kernel takes is taken from measured updates of brax:ant
(experiments/results/accelerator), for collecting and for learning, whose loops have a length that depends on data. How
well the counts predict other measured updates shows how far to trust them.
Written to experiments/results/bounds/.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from common.comparison import extent_of, options
from common.costs import Cost, Costs
from common.machine import machine
from common.store import RESULTS
from common.tables import write_csv
from jaxtrpo.ops.minibatches import minibatches_for
from jaxtrpo.training.train import prepare

# Of an NVIDIA H100 SXM: float32 outside of tensor cores, and its memory (data sheet).
FLOPS_PER_SECOND, BYTES_PER_SECOND = 67e12, 3.35e12
SIZES = (1_024, 4_096)  # environments for which operations are counted; costs are linear in them
SHOWN = 4_096  # the default on accelerators
NUM_ENVS = (256, 1_024, 4_096, 16_384, 65_536)
STEPS = 16  # of each environment an update
PROGRAMS = (("brax:ant", "trpo"), ("brax:ant", "ppo"), ("brax:ant", "trpo_replay"), ("brax:humanoid", "trpo"))
QUICK_PROGRAMS = (("brax:inverted_pendulum/spring", "trpo"),)
PARTS = ("collecting", "learning")
FITTED = "brax:ant", "trpo"  # whose measured seconds give those of a kernel launch
SMALL = 0.01  # share of its part below which a stage is not shown


class Stage(NamedTuple):
    """What a stage costs in one update with a number of environments."""

    task: str
    algorithm: str
    part: str
    stage: str
    num_envs: int
    flops: float
    bytes: float
    kernels: float


class Checked(NamedTuple):
    """A program's cost with all loops run once, as counted here and by XLA."""

    task: str
    algorithm: str
    part: str
    num_envs: int
    flops: float
    xla_flops: float
    bytes: float
    xla_bytes: float


class Line(NamedTuple):
    """A stage's seconds: some for any number of environments, and some for each."""

    kernels: float
    arithmetic: tuple[float, float]
    memory: tuple[float, float]

    def memory_seconds(self, num_envs: int) -> float:
        return self.memory[0] + self.memory[1] * num_envs

    def seconds(self, num_envs: int, start: float) -> float:
        """Returns the time of the kernel launches, and of the slower of arithmetic and memory."""
        arithmetic = self.arithmetic[0] + self.arithmetic[1] * num_envs
        return start * self.kernels + max(arithmetic, self.memory_seconds(num_envs))


def count(task: str, algorithm: str, num_envs: int) -> Iterator[tuple[list[Stage], Checked]]:
    """Compiles an update and counts its two parts."""
    settings = {"num_envs": num_envs, "segment_length": STEPS, "steps_per_update": STEPS * num_envs, "actors": 1}
    run = prepare(task, algorithm=algorithm, adapt="fixed", **settings)
    update, state = run.update, run.state
    collecting = update.actors.map(update.collect).lower(state.actors, state.learner, state.hyperparameters)
    learning = update.actors.map(update.learn).lower(state._replace(actors=None), collecting.out_info[1])
    for part, lowered in zip(PARTS, (collecting, learning), strict=True):
        compiled = lowered.compile()
        program, by_xla = compiled.as_text(), compiled.cost_analysis()
        costs = Costs(program, trips(algorithm, num_envs))
        once = sum(Costs(program, None).by_stage().values(), Cost())
        yield (
            [Stage(task, algorithm, part, name, num_envs, *cost[:3]) for name, cost in costs.by_stage().items()],
            Checked(
                *(task, algorithm, part, num_envs),
                *(once.flops - once.transcendental, by_xla["flops"], once.bytes, by_xla["bytes accessed"]),
            ),
        )


def trips(algorithm: str, num_envs: int) -> dict[str, int]:
    """Returns how often loops run whose length depends on data; those that are not here run once, or hardly more.

    Conjugate gradient may stop before its 15 iterations; the line search mostly accepts its first trial.
    """
    per_pass = STEPS * num_envs // max({"ppo": 64}.get(algorithm, 128), num_envs)
    drawn = minibatches_for(num_envs, 64, 0.125, 0.5)
    return {
        "critic/while/body/closed_call/while": per_pass,
        "passes/while/body/while": per_pass,
        "fisher/while": 15,
        "action_critic/while": round(STEPS * num_envs * drawn.per_step / drawn.at_once),
        "action_critic/while/body/while": drawn.at_once,
    }


Key = tuple[str, str, str, str]  # task, algorithm, part and stage
Program = tuple[str, str, str]  # task, algorithm and part


def lines(stages: Sequence[Stage]) -> dict[Key, Line]:
    """Returns the seconds of each stage as a function of the number of environments."""
    few, many = sorted({each.num_envs for each in stages})
    counted = {(*each[:4], each.num_envs): each for each in stages}

    def line(a: float, b: float, peak: float) -> tuple[float, float]:
        slope = (b - a) / (many - few)
        return (a - slope * few) / peak, slope / peak

    found = {}
    for key in dict.fromkeys(each[:4] for each in stages):
        a, b = (counted.get((*key, size), Stage(*key, size, 0.0, 0.0, 0.0)) for size in (few, many))
        arithmetic, memory = line(a.flops, b.flops, FLOPS_PER_SECOND), line(a.bytes, b.bytes, BYTES_PER_SECOND)
        found[key] = Line(max(a.kernels, b.kernels), arithmetic, memory)
    return found


def of_program(found: Mapping[Key, Line], program: Program) -> list[Line]:
    return [line for key, line in found.items() if key[:3] == program]


def measurements() -> dict[tuple[Program, int], float]:
    """Returns the measured seconds of the parts of an update."""
    with (RESULTS / "accelerator" / "measured.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == "speed" and "H100" in row["device"]]
    speeds = {(row["task"], row["system"], int(row["num_envs"]), row["figure"]): float(row["value"]) for row in rows}
    found = {}
    for task, algorithm, num_envs in dict.fromkeys(key[:3] for key in speeds):
        steps = STEPS * num_envs
        collecting, whole = (steps / speeds[task, algorithm, num_envs, name] for name in ("collecting", "training"))
        found[(task, algorithm, "collecting"), num_envs] = collecting
        found[(task, algorithm, "learning"), num_envs] = whole - collecting
    return found


def fitted_starts(found: Mapping[Key, Line], measured: Mapping[tuple[Program, int], float]) -> dict[str, float]:
    """Returns the seconds of a kernel launch that explain the measured seconds of each part, as medians."""
    starts = {part: [] for part in PARTS}
    for (program, num_envs), seconds in measured.items():
        if program[:2] == FITTED:
            own = of_program(found, program)
            rest = seconds - sum(line.seconds(num_envs, 0.0) for line in own)
            starts[program[2]].append(rest / sum(line.kernels for line in own))
    return {part: float(np.median(some)) for part, some in starts.items()}


def summary(
    found: Mapping[Key, Line], measured: Mapping[tuple[Program, int], float], start: Mapping[str, float]
) -> list[str]:
    """Returns the lines of README.md."""
    fitted = [f"{1e6 * start[part]:.2g} µs while {part}" for part in PARTS]
    text = [
        "# What bounds an update on an accelerator?",
        "",
        f"`python experiments/bounds.py`, counted on {machine()}, without an accelerator.",
        f"Peaks of an H100: {FLOPS_PER_SECOND / 1e12:.0f} TFLOP/s of float32, {BYTES_PER_SECOND / 1e12:.2f} TB/s.",
        f"A kernel launch takes {' and '.join(fitted)}: with these, predictions are closest to measured updates",
        f"of {FITTED[0]} (median of four numbers of environments). {STEPS} steps of each environment per update.",
        "",
        "## Seconds of an update, predicted and measured",
        "",
        "| task | algorithm | part | environments | predicted | measured |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for (program, num_envs), seconds in sorted(measured.items()):
        if own := of_program(found, program):
            predicted = sum(line.seconds(num_envs, start[program[2]]) for line in own)
            text.append(f"| {' | '.join(program)} | {num_envs:,} | {predicted:.3f} | {seconds:.3f} |")
    text += [
        "",
        f"## Milliseconds of a stage with {SHOWN:,} environments",
        "",
        f"Without stages below {SMALL:.0%} of their part. The last column is the number of environments above which",
        "memory takes longer than the kernel launches, which no number changes.",
        "",
        "| task | algorithm | part | stage | kernels | launches | memory | arithmetic | bound by | memory from |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for key, line in found.items():
        part = start[key[2]]
        whole = sum(each.seconds(SHOWN, part) for each in of_program(found, key[:3]))
        if line.seconds(SHOWN, part) > SMALL * whole:
            text.append(f"| {' | '.join(key)} | {' | '.join(cells_of(line, part))} |")
    text += ["", "## Most that more environments can bring", "", *gains(found, start)]
    return text


def cells_of(line: Line, start: float) -> list[str]:
    """Returns what the table says of a stage."""
    seconds = {"launches": start * line.kernels, "memory": line.memory_seconds(SHOWN)}
    seconds["arithmetic"] = line.arithmetic[0] + line.arithmetic[1] * SHOWN
    bound = max(seconds, key=lambda name: seconds[name])
    equal = (seconds["launches"] - line.memory[0]) / line.memory[1] if line.memory[1] > 0 else float("inf")
    return [
        f"{line.kernels:,.0f}",
        *(f"{1e3 * each:.2f}" for each in seconds.values()),
        bound,
        f"{equal:,.0f}" if equal < 10**6 else "never",
    ]


def gains(found: Mapping[Key, Line], start: Mapping[str, float]) -> Iterator[str]:
    """Yields a table of predicted steps per second of whole updates, relative to any number of environments."""
    yield f"| task | algorithm | {' | '.join(f'{size:,}' for size in NUM_ENVS)} | limit, steps per second |"
    yield "| --- | --- |" + " --- |" * (len(NUM_ENVS) + 1)
    for task, algorithm in dict.fromkeys(key[:2] for key in found):

        def speed(num_envs: int, of: tuple[str, str] = (task, algorithm)) -> float:
            parts = ((line, start[part]) for part in PARTS for line in of_program(found, (*of, part)))
            return STEPS * num_envs / sum(line.seconds(num_envs, each) for line, each in parts)

        limit = speed(10**9)
        shares = " | ".join(f"{speed(size) / limit:.0%}" for size in NUM_ENVS)
        yield f"| {task} | {algorithm} | {shares} | {limit:,.0f} |"


def main() -> None:
    quick = options(__doc__).parse_args().quick
    folder, programs = extent_of("bounds", (), quick=quick).folder, QUICK_PROGRAMS if quick else PROGRAMS
    counted = [each for program in programs for size in SIZES for each in count(*program, size)]
    stages, checks = [stage for some, _ in counted for stage in some], [check for _, check in counted]
    write_csv(folder / "stages.csv", Stage._fields, stages)
    write_csv(folder / "checks.csv", Checked._fields, checks)
    found, measured = lines(stages), measurements()
    start = fitted_starts(found, measured) if FITTED in programs else dict.fromkeys(PARTS, 1e-6)
    (folder / "README.md").write_text("\n".join(summary(found, measured, start)) + "\n")
    print((folder / "README.md").read_text())


if __name__ == "__main__":
    main()
