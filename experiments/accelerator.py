"""How fast is everything on an accelerator, beside Brax's own PPO, and where does the time go?

    pip install '.[experiments]' 'jax[cuda13]' playground
    python experiments/accelerator.py [--quick] [--summary] [--parts PART ...] [--tasks TASK ...]

Each part of each task is a process of its own, one after another, and takes at most eight minutes. A figure that is
there already is not measured again, so that a part which was interrupted goes on. Parts:

    speed       environment steps per second of collecting alone and of whole trainings, memory
    brax        the same of Brax's PPO with its published settings
    profile     seconds of an update by stage, from a profile of the device
    compile     seconds until everything is compiled, without a compilation cache and with one
    many        `train_many` with 16 and 64 seeds in one program
    stepping    `mjx:` beside `playground:`, with MuJoCo Warp where it is installed; random actions
    returns     deterministic return against seconds, ours and Brax's PPO, to the same number of steps

Written to experiments/results/accelerator/. `--quick` tries all parts but
`stepping` at a hundredth of the size, on any machine, in three minutes. Ends with exit status 1 if a part fails.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.util
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

EXPERIMENTS = Path(__file__).parent
TASKS = (
    "brax:ant",
    "brax:humanoid",
    "playground:CartpoleBalance",
    "playground:Go1JoystickFlatTerrain",
    "playground:BerkeleyHumanoidJoystickFlatTerrain",
)
QUICK_TASKS = ("brax:inverted_pendulum/spring",)
ALGORITHMS = ("trpo", "ppo", "trpo_replay")
NUM_ENVS = {"trpo": (256, 1_024, 2_048, 4_096, 8_192, 16_384), "ppo": (4_096,), "trpo_replay": (2_048,)}
OF_RETURNS = (("trpo", 16_384), ("trpo", 4_096), ("ppo", 16_384))  # algorithms and environments that learn to the end
UPDATES, WARM_UP = 8, 3  # of which speeds are medians; before them
SEEDS_AT_ONCE = (16, 64)
NO_GRAPHS = "--xla_gpu_enable_command_buffer="
QUICKLY = {
    "JAX_COMPILATION_CACHE_DIR": str(Path("runs/quick/accelerator/cache").absolute()),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
}
WHOLE = "whole, seconds"  # of a training that has ended
MOST_SECONDS = 480  # of a part
COLUMNS = ("device", "part", "task", "system", "num_envs", "figure", "value")


class Place(NamedTuple):
    """Where figures of one part and task are kept."""

    path: Path
    device: str
    part: str
    task: str
    quick: bool

    def known(self, system: str, num_envs: int, figure: str | None = None) -> bool:
        """Whether this was measured before: a figure of it, or any."""
        key = (self.device, self.part, self.task, system, str(num_envs))
        rows = [row for row in read_rows(self.path) if tuple(row[name] for name in COLUMNS[:5]) == key]
        return any(figure in (None, row["figure"]) for row in rows)

    def add(self, system: str, num_envs: int, figures: Mapping[str, float]) -> None:
        """Appends figures."""
        new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if new:
                writer.writerow(COLUMNS)
            for name, value in figures.items():
                writer.writerow((self.device, self.part, self.task, system, num_envs, name, f"{value:.5g}"))
        shown = ", ".join(f"{name} {value:.5g}" for name, value in figures.items())
        print(f"{self.part} {self.task} {system}, {num_envs} environments: {shown}", flush=True)


def read_rows(path: Path) -> list[dict[str, str]]:
    """All figures; none if there is no file yet."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the size, written to runs/quick")
    parser.add_argument("--summary", action="store_true", help="measure nothing; write tables of what is there")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--tasks", nargs="+")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)  # this process measures
    arguments = parser.parse_args()
    tasks = arguments.tasks or (QUICK_TASKS if arguments.quick else TASKS)
    folder = (Path("runs") / "quick" if arguments.quick else EXPERIMENTS / "results") / "accelerator"
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.quick and not (arguments.alone or arguments.summary):  # a trial measures everything each time
        (folder / "measured.csv").unlink(missing_ok=True)
    if arguments.alone:
        measure(arguments.parts[0], tasks[0], folder, quick=arguments.quick)
        return
    done = True
    for part, task in itertools.product(() if arguments.summary else arguments.parts, tasks):
        if task.startswith("playground:") and importlib.util.find_spec("mujoco_playground") is None:
            print(f"{part} {task}: left out, playground is not installed", flush=True)
        else:
            done &= in_a_process(part, task, quick=arguments.quick)
    (folder / "README.md").write_text(summary(folder))
    print((folder / "README.md").read_text())
    sys.exit(0 if done else 1)


def in_a_process(part: str, task: str, *, quick: bool) -> bool:
    """Measures a part of a task; returns whether it was done, and did not fail or take too long."""
    command = [sys.executable, __file__, "--alone", "--parts", part, "--tasks", task, *(["--quick"] if quick else [])]
    environment = dict(os.environ)
    if quick:  # which compiles most of the time
        environment = QUICKLY | environment
    if part == "profile":  # kernels of CUDA graphs do not say which operation they belong to
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {NO_GRAPHS}".strip()
    begin = time.perf_counter()
    try:
        code = subprocess.run(command, timeout=MOST_SECONDS, check=False, env=environment).returncode
        ended = "done" if code == 0 else f"failed with exit status {code}"
    except subprocess.TimeoutExpired:
        ended = f"stopped after {MOST_SECONDS} s"
    print(f"{part} {task}: {ended}, {time.perf_counter() - begin:.0f} s", flush=True)
    return ended == "done"


def measure(part: str, task: str, folder: Path, *, quick: bool) -> None:
    """Measures a part of a task in this process."""
    import jax

    from jaxtrpo.parallel.devices import choose_actors

    if jax.default_backend() == "cpu":
        choose_actors(1, program=True, for_good=True)
    device = jax.devices()[0].device_kind
    (folder / "versions.json").write_text(json.dumps(versions(), indent=1) + "\n")
    PARTS[part](Place(folder / "measured.csv", device, part, task, quick))


def versions() -> dict[str, str]:
    """Of the device's driver, and of the packages."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    with contextlib.suppress(FileNotFoundError):
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        found["device"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    for name in ("jax", "jaxlib", "brax", "mujoco", "mujoco-mjx", "playground", "warp-lang"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return {"python": sys.version.split()[0], **found}


# Parts.


class Updates(NamedTuple):
    """What updates of a run took."""

    first_update: float  # seconds until it is done, compiling counted
    collecting: float  # environment steps per second, of collecting alone
    training: float  # environment steps per second
    memory_bytes: float  # most in use so far in this process, so sizes are measured in ascending order


def updates_of(task: str, algorithm: str, num_envs: int, **settings: Any) -> Updates:
    """Makes updates of a run whose batch sizes are fixed."""
    from jaxtrpo.parallel.actors import first
    from jaxtrpo.training.drivers.synchronous import synchronous_updates
    from jaxtrpo.training.train import prepare

    settings = {"adapt": "fixed", "device": "auto", "actors": 1, "total_steps": 10**9, **settings}
    run = prepare(task, algorithm=algorithm, num_envs=num_envs, **settings)
    begin = time.perf_counter()
    moments = synchronous_updates(run.update, run.state, first)
    ends = []
    collecting = []
    with contextlib.closing(moments):
        for _ in range(WARM_UP):
            next(moments)
            ends.append(time.perf_counter())
        for _ in range(UPDATES):
            collecting.append(next(moments).collect_seconds)
            ends.append(time.perf_counter())
    steps = run.update.sizes.segment_steps * run.update.sizes.max_segments
    took = [after - before for before, after in itertools.pairwise(ends[WARM_UP - 1 :])]
    memory = run.actors.devices[0].memory_stats() or {}
    return Updates(
        first_update=ends[0] - begin,
        collecting=steps / statistics.median(collecting),
        training=steps / statistics.median(took),
        memory_bytes=memory.get("peak_bytes_in_use", float("nan")),
    )


def speed(place: Place) -> None:
    """Steps per second against the number of environments."""
    for algorithm in ALGORITHMS:
        for num_envs in (32,) if place.quick else NUM_ENVS[algorithm]:
            if not place.known(algorithm, num_envs):
                found = updates_of(place.task, algorithm, num_envs)._asdict()
                del found["first_update"]  # whether it was compiled before is another question
                place.add(algorithm, num_envs, found)


def brax(place: Place) -> None:
    """Steps per second of Brax's PPO."""
    from common.brax_ppo import Evaluation, settings_of, train

    num_envs = settings_of(place.task)["num_envs"]
    if place.known("brax ppo", num_envs):
        return
    steps = 4_096 if place.quick else 20 * num_envs * 100
    found: list[Evaluation] = []
    train(
        place.task,
        found.append,
        quick=place.quick,
        num_timesteps=steps,
        num_evals=4,
        num_resets_per_eval=0,
        run_evals=False,
    )
    place.add("brax ppo", num_envs, {"training": found[-1].steps_per_second})


def profile(place: Place) -> None:
    """Seconds of collecting and learning, by stage."""
    import jax

    from common.stages import seconds_by_stage
    from jaxtrpo.training.train import prepare

    for algorithm in ALGORITHMS[:1] if place.quick else ALGORITHMS:
        num_envs = 32 if place.quick else 16_384
        if place.known(algorithm, num_envs):
            continue
        run = prepare(place.task, algorithm=algorithm, num_envs=num_envs, adapt="fixed", device="auto", actors=1)
        update, state = run.update, run.state
        collect = update.actors.map(update.collect).lower(state.actors, state.learner, state.hyperparameters).compile()
        _, batch = collect(state.actors, state.learner, state.hyperparameters)
        learn = update.actors.map(update.learn).lower(state._replace(actors=None), batch).compile()
        for _ in range(2):  # after the first, the scale of observations is known
            state = state._replace(learner=learn(state._replace(actors=None), batch)[0].learner)
            actors, batch = collect(state.actors, state.learner, state.hyperparameters)
            state = state._replace(actors=actors)
        for name, program, arguments in (
            ("collecting", collect, (state.actors, state.learner, state.hyperparameters)),
            ("learning", learn, (state._replace(actors=None), batch)),
        ):

            def once(program: Any = program, arguments: Any = arguments) -> None:
                jax.block_until_ready(program(*arguments))

            once()
            begin = time.perf_counter()
            once()
            whole = time.perf_counter() - begin
            stages = seconds_by_stage(program.as_text(), once)
            busy = {f"{name}: {stage}": seconds for stage, seconds in stages.items()}
            place.add(algorithm, num_envs, {f"{name}, whole": whole, **busy})


def compile_(place: Place) -> None:
    """Seconds until the first update ends, without a compilation cache and with one."""
    import jax

    num_envs = 32 if place.quick else 2_048
    if place.known("trpo", num_envs):
        return
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        found = {}
        for figure in ("first start", "second start"):
            jax.clear_caches()
            found[figure] = updates_of(place.task, "trpo", num_envs).first_update
    place.add("trpo", num_envs, found)


def many(place: Place) -> None:
    """Steps per second of all seeds of `train_many` together, beside one."""
    import jaxtrpo

    num_envs, steps = (16, 2_048) if place.quick else (256, 262_144)
    for seeds in (1, *((2,) if place.quick else SEEDS_AT_ONCE)):
        system = f"{seeds} seeds"
        if place.known(system, num_envs):
            continue
        settings: dict[str, Any] = {"num_envs": num_envs, "total_steps": steps, "adapt": "fixed", "progress": False}
        begin = time.perf_counter()
        results = jaxtrpo.train_many(place.task, seeds=range(seeds), device="auto", **settings)
        whole = time.perf_counter() - begin
        walls = results[0].metrics["wall_seconds"]
        per_update = statistics.median(after - before for before, after in itertools.pairwise(walls))
        of_update = results[0].metrics["env_steps"][-1] / len(walls)
        place.add(system, num_envs, {"training": seeds * of_update / per_update, "whole call, seconds": whole})


def stepping(place: Place) -> None:
    """Steps per second of random actions, of Playground's environment and of MJX, with Warp where it is there."""
    import jax

    from common.loops import loop
    from jaxtrpo.envs.registry import make_env

    if place.task.startswith("brax:"):
        return
    systems: dict[str, tuple[str, dict[str, Any]]] = {
        "playground:CheetahRun": ("playground:CheetahRun", {}),
        "mjx:HalfCheetah-v5": ("mjx:HalfCheetah-v5", {}),
    }
    if importlib.util.find_spec("warp") is not None and jax.default_backend() == "gpu":
        systems["mjx:HalfCheetah-v5, warp"] = ("mjx:HalfCheetah-v5", {"impl": "warp"})
    for system, (name, settings) in systems.items():
        for num_envs in (32,) if place.quick else (2_048, 8_192):
            if place.known(system, num_envs):
                continue
            made = loop(make_env(name, **settings), num_envs, 4 if place.quick else 50)
            place.add(system, num_envs, {"stepping": statistics.median(made.steps_per_second() for _ in range(3))})


def returns(place: Place) -> None:
    """Deterministic return against seconds."""
    import jaxtrpo
    from common.brax_ppo import Evaluation, settings_of, train

    published = settings_of(place.task)
    steps, evaluations = (8_192, 2) if place.quick else (published["num_timesteps"], published["num_evals"])
    if not place.known("brax ppo", published["num_envs"], WHOLE):

        def add(point: Evaluation) -> None:
            figures = {"seconds": point.seconds, "return": point.mean_return}
            place.add("brax ppo", published["num_envs"], at(point.env_steps, figures))

        changes = {"num_timesteps": steps, "num_evals": evaluations, "deterministic_eval": True}
        begin = time.perf_counter()
        train(place.task, add, quick=place.quick, **changes)
        place.add("brax ppo", published["num_envs"], {WHOLE: time.perf_counter() - begin})
    for algorithm, num_envs in (("trpo", 32),) if place.quick else OF_RETURNS:
        if place.known(algorithm, num_envs, WHOLE):
            continue

        def add_row(row: Mapping[str, Any], _: Any, system: str = algorithm, num_envs: int = num_envs) -> None:
            if row["eval_return"] is not None and not math.isnan(row["eval_return"]):
                figures = {"seconds": row["wall_seconds"], "return": row["eval_return"]}
                place.add(system, num_envs, at(int(row["env_steps"]), figures))

        begin = time.perf_counter()
        jaxtrpo.train(
            place.task,
            algorithm=algorithm,
            num_envs=num_envs,
            total_steps=steps,
            device="auto",
            actors=1,
            eval_every=steps // evaluations,
            eval_episodes=16 if place.quick else 128,
            on_update=add_row,
            progress=False,
        )
        place.add(algorithm, num_envs, {WHOLE: time.perf_counter() - begin})


def at(env_steps: int, figures: Mapping[str, float]) -> dict[str, float]:
    """Figures named by the environment steps at which they were taken."""
    return {f"{name} at {env_steps}": value for name, value in figures.items()}


PARTS: dict[str, Callable[[Place], None]] = {
    "speed": speed,
    "brax": brax,
    "profile": profile,
    "compile": compile_,
    "many": many,
    "stepping": stepping,
    "returns": returns,
}


# Tables.


def summary(folder: Path) -> str:
    """All figures in Markdown."""
    path = folder / "versions.json"
    about = json.loads(path.read_text()) if path.exists() else {}
    lines = [
        "# How fast is everything on an accelerator?",
        "",
        "`python experiments/accelerator.py`; " + ", ".join(f"{name} {value}" for name, value in about.items()) + ".",
    ]
    rows = read_rows(folder / "measured.csv")
    for device, part in dict.fromkeys((row["device"], row["part"]) for row in rows):
        chosen = [row for row in rows if (row["device"], row["part"]) == (device, part)]
        lines += ["", f"## {part}, {device}", "", *table(chosen)]
    return "\n".join(lines) + "\n"


def table(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """A row for each task, system and number of environments, and a column for each figure."""
    figures = list(dict.fromkeys(row["figure"] for row in rows))
    if any(" at " in figure for figure in figures):  # of curves, which are long
        yield "| task | system | environments | figure | value |"
        yield "| --- | --- | --- | --- | --- |"
        for row in rows:
            yield f"| {row['task']} | {row['system']} | {row['num_envs']} | {row['figure']} | {shown(row['value'])} |"
        return
    yield "| task | system | environments | " + " | ".join(figures) + " |"
    yield "| --- | --- | --- |" + " --- |" * len(figures)
    for key in dict.fromkeys((row["task"], row["system"], row["num_envs"]) for row in rows):
        found = {
            row["figure"]: shown(row["value"]) for row in rows if (row["task"], row["system"], row["num_envs"]) == key
        }
        yield f"| {' | '.join(key)} | " + " | ".join(found.get(figure, "") for figure in figures) + " |"


def shown(value: str) -> str:
    """A number as people read it."""
    return f"{float(value):,.0f}" if abs(float(value)) >= 1_000 else f"{float(value):.3g}"


if __name__ == "__main__":
    main()
