"""How long does a training take here, and how long with PyTorch? The same tasks and settings, one process at a time.

    pip install '.[experiments,baselines]'
    python experiments/pytorch_baseline.py [--quick] [--summary]

Each training has the whole machine to itself; systems take turns, with three seeds, the faster ones with seven where
seeds learn differently fast. All policies and critics are networks of 64-64 tanh. Ours start with nothing compiled, as
the first time on a machine, and again with what was compiled then. Finished trainings are kept and only gaps are
filled. Written to experiments/results/pytorch_baseline/.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common.comparison import extent_of, options_of_runs, require_runs
from common.machine import machine, versions
from common.peer import require_peers
from common.plots import colors_of, common_legend, panels, save
from common.systems import SECOND, System, our_systems, peer_system
from common.tables import append_line, read_lines, write_csv
from jaxtrpo.config import USUAL_DISCOUNT
from jaxtrpo.parallel.machine import available_cores

EQUAL = {"num_envs": 16, "steps_per_update": 1_024}
SEEDS = range(7)
PACKAGES = ("torch", "sb3-contrib", "tianshou", "envpool", "gymnasium")
FEWER = 3  # seeds: where they differ little, or training takes minutes
POINTS = 100  # of a stored curve
TRAININGS = "trainings.jsonl"
COLUMNS = ("env", "system", "seed", "env_steps", "steps_per_second", "seconds", "target", "seconds_to_target", "memory")


class Task(NamedTuple):
    """How long a task is trained, and the returns whose time is taken."""

    total_steps: int
    targets: tuple[int, ...]
    seeds: int = len(SEEDS)  # at most


class Training(NamedTuple):
    """What one training showed."""

    env: str
    system: str
    seed: int
    steps_per_second: float  # environment steps, from the end of the first update to the end of the last
    seconds: float  # from the command to the end of the last update
    seconds_to: dict[str, float | None]  # target -> from the command until the last 100 episodes reach it
    memory: float  # bytes, the most there was
    made_with: str
    curve: list[tuple[float, float, float]]  # environment steps, seconds, return


Found = Mapping[tuple[str, str], Sequence[Training]]  # by task and system


def _peer(script: str, what: str, **settings: Any) -> System:
    return peer_system(script, what, **{**EQUAL, **settings})


TASKS = {
    "HalfCheetah-v5": Task(500_000, (2_000, 4_000)),
    "Hopper-v5": Task(300_000, (2_000,)),
    "Reacher-v5": Task(200_000, (-6,), seeds=FEWER),
}
# The TRPO of the others: every update has the same trust region, whatever its advantages are.
OURS_EQUAL = {
    **EQUAL,
    "discount": USUAL_DISCOUNT,
    "adapt": "fixed",
    "algorithm": f"trpo(advantage_memory=0, fisher_samples={EQUAL['steps_per_update']})",
}
SYSTEMS = {
    **our_systems(
        "jaxtrpo",
        f"discount {USUAL_DISCOUNT}: batches and trust region adapt",
        algorithm="trpo",
        discount=USUAL_DISCOUNT,
    ),
    **our_systems(
        "jaxtrpo, no advantage memory",
        "the same, but the trust region does not depend on how large advantages are (advantage_memory=0)",
        algorithm="trpo(advantage_memory=0)",
        discount=USUAL_DISCOUNT,
    ),
    **our_systems(
        "jaxtrpo, equal settings",
        "16 environments, 1,024 steps an update, all of them in the Fisher matrix, one trust region for all updates",
        **OURS_EQUAL,
    ),
    "sb3-contrib, equal settings": _peer(
        "sb3.py",
        "16 environments in the process of the learner, 1,024 steps an update",
        vectorize="in_process",
    ),
    "sb3-contrib, equal settings, subprocesses": _peer(
        "sb3.py", "16 environments, a process each, 1,024 steps an update", vectorize="subprocess"
    ),
    "sb3-contrib, its defaults": _peer(
        "sb3.py", "one environment, 2,048 steps an update", vectorize="in_process", num_envs=1, steps_per_update=2_048
    ),
    "sb3-contrib, its defaults, subprocesses": _peer(
        "sb3.py",
        "an environment a core, a process each, 2,048 steps of each an update",
        vectorize="subprocess",
        num_envs=available_cores(),
        steps_per_update=2_048 * available_cores(),
    ),
    "Tianshou over EnvPool": _peer(
        "tianshou_envpool.py",
        "16 environments, 1,024 steps an update; otherwise the settings of its MuJoCo benchmark (10 iterations of "
        "conjugate gradient, 20 steps of the critic on whole batches)",
    ),
    "design of 2016": peer_system(
        "parallel_2016.py",
        "a Python process an actor, one environment each, whole episodes, at least 1,024 steps an update (on "
        "HalfCheetah an episode each: 1,000 steps an actor)",
        actors=available_cores(),
        steps_per_update=1_024,
    ),
}
FASTER = ("sb3-contrib, equal settings", "design of 2016")  # of the others: trained with as many seeds as ours


def seeds_of(env: str, system: str) -> int:
    """How many, at most."""
    return min(TASKS[env].seeds, len(SEEDS) if SYSTEMS[system].ours or system in FASTER else FEWER)


def train(env: str, system: str, seed: int, total_steps: int, store: Path) -> None:
    """Runs one training and stores what it showed, unless an earlier one has been stored."""
    if any((each["env"], each["system"], each["seed"]) == (env, system, seed) for each in read_lines(store)):
        return
    found = SYSTEMS[system].train(env, seed, total_steps)
    steps, seconds, returns = found.env_steps, found.seconds, found.returns

    def seconds_to(target: float) -> float | None:
        reached = np.flatnonzero(returns >= target)  # false where there is no return yet
        return round(float(seconds[reached[0]]), 2) if len(reached) else None

    points = np.unique(np.linspace(0, len(steps) - 1, POINTS).round().astype(int))
    training = Training(
        env=env,
        system=system,
        seed=seed,
        steps_per_second=round(found.steps_per_second, 1),
        seconds=round(float(seconds[-1]), 2),
        seconds_to={str(target): seconds_to(target) for target in TASKS[env].targets},
        memory=float(found.memory.max()),
        made_with=f"{machine()}; {versions(PACKAGES)}",
        curve=[(steps[i], round(seconds[i], 2), round(returns[i], 2)) for i in points if np.isfinite(returns[i])],
    )
    append_line(store, training._asdict())
    print(f"finished {env} {system} seed {seed}: {training.steps_per_second:.0f} steps/s", flush=True)


def known(store: Path) -> Found:
    """All that are stored, in the order of tasks and systems."""
    trainings = sorted((Training(**each) for each in read_lines(store)), key=lambda each: each.seed)
    return {
        (env, system): of_both
        for env in TASKS
        for system in SYSTEMS
        if (of_both := [each for each in trainings if (each.env, each.system) == (env, system)])
    }


def main() -> None:
    arguments = options_of_runs(__doc__).parse_args()
    extent = extent_of("pytorch_baseline", SEEDS, quick=arguments.quick)
    store = extent.folder / TRAININGS
    if not arguments.summary:
        require_peers()
        for seed in extent.seeds[:1] if arguments.quick else extent.seeds:
            for env in list(TASKS)[-1:] if arguments.quick else TASKS:
                for system in SYSTEMS:
                    if seed < seeds_of(env, system):
                        total_steps = 20_000 if arguments.quick else TASKS[env].total_steps
                        train(env, system, seed, total_steps, store)
    found = known(store)
    require_runs("pytorch_baseline", found)
    plot(found, extent.folder / "curves.png")
    write_csv(extent.folder / "trainings.csv", COLUMNS, rows(found))
    (extent.folder / "README.md").write_text(summary(found))
    print(summary(found))


def rows(found: Found) -> Iterator[tuple[Any, ...]]:
    for trainings in found.values():
        for each in trainings:
            for target, seconds in each.seconds_to.items():
                figures = each.curve[-1][0], each.steps_per_second, each.seconds, target, seconds, each.memory
                yield each.env, each.system, each.seed, *figures


def plot(found: Found, path: Path) -> None:
    envs = list(dict.fromkeys(env for env, _ in found))
    figure, axes = panels(1, len(envs), "Return against the clock, each training alone on the machine")
    colors = colors_of(system.removesuffix(SECOND) for system in SYSTEMS)
    for place, env in zip(axes[0], envs, strict=True):
        for system in SYSTEMS:
            style = {
                "color": colors[system.removesuffix(SECOND)],
                "linestyle": "--" if system.endswith(SECOND) else "-",
            }
            for each in found.get((env, system), ()):
                _, seconds, returns = np.array(each.curve).T
                label = f"{system} ({len(found[env, system])} seeds)" if each is found[env, system][0] else None
                place.plot(seconds, returns, **style, linewidth=0.9, alpha=0.8, label=label)
        for target in TASKS[env].targets:
            place.axhline(target, color="0.7", linestyle=":")
        place.set(title=env, xlabel="seconds since the command", ylabel="mean return of 100 episodes", xscale="log")
    common_legend(figure)
    save(figure, path)


def summary(found: Found) -> str:
    made_with = " and ".join(dict.fromkeys(each.made_with for trainings in found.values() for each in trainings))
    lines = [
        "# How long does a training take here, and how long with PyTorch?",
        "",
        f"`python experiments/pytorch_baseline.py` on {made_with}. One training at a time; medians over seeds. Steps "
        "per second from the end of the first update to the last, and how many times faster ours is with equal "
        "settings. Seconds from giving the command until the mean return of the last 100 episodes (exploring) reaches "
        "a figure, a dash where most seeds do not, and how many do. Memory is the most that was resident, of all "
        "processes; what they share counts once.",
        "",
        "![Return against the clock](curves.png)",
        "",
        "| task | system | steps/s | ours over it | seconds to a return | peak memory | environment steps | seeds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (env, system), trainings in found.items():
        speed = statistics.median(each.steps_per_second for each in trainings)
        ours = found.get((env, "jaxtrpo, equal settings"), trainings)
        ratio = statistics.median(each.steps_per_second for each in ours) / speed
        reached = ", ".join(f"{target}: {_seconds_to(str(target), trainings)}" for target in TASKS[env].targets)
        memory = statistics.median(each.memory for each in trainings) / 2**20
        steps = trainings[0].curve[-1][0]
        lines.append(
            f"| {env} | {system} | {speed:,.0f} | {ratio:.1f} | {reached} | {memory:,.0f} MiB | {steps:,.0f} "
            f"| {len(trainings)} |"
        )
    lines += ["", *(f"- {name}: {system.what}" for name, system in SYSTEMS.items())]
    return "\n".join(lines) + "\n"


def _seconds_to(target: str, trainings: Sequence[Training]) -> str:
    """The median, a dash if most did not get there, and how many did."""
    found = sorted(each.seconds_to[target] or np.inf for each in trainings)
    median = found[len(found) // 2]
    return f"{f'{median:.0f}' if np.isfinite(median) else '-'} ({np.isfinite(found).sum()} of {len(found)})"


if __name__ == "__main__":
    main()
