"""How long until a return is reached: TRPO with a critic of actions, TRPO, and SAC and PPO of other libraries.

    pip install '.[experiments,baselines]'
    python experiments/time_to_return.py [--quick] [--summary] [--rounds 1] [--patience 20]
        [--tasks HalfCheetah-v5 ...]

Each training is a command with the whole machine to itself; systems take turns, with another seed each round. The clock
starts with the command and ends with the first evaluation, ten deterministic episodes, whose mean reaches the return.
Ours compile everything first, and their evaluations count; the clocks of the others stand still meanwhile. A training
is ended once it is there, or after `--patience` times what `trpo_replay` took for the highest return. Finished
trainings stay and only gaps are filled. Written to experiments/results/time_to_return/.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common.comparison import extent_of, options_of_runs, require_runs
from common.machine import machine, versions
from common.peer import require_peers
from common.runs import TRAIN
from common.systems import System, peer_system
from common.tables import append_line, read_lines, write_csv
from jaxtrpo.config import USUAL_DISCOUNT

PATIENCE = 20  # how many times faster than SAC ours shall be
ROUNDS = 1
OURS, TRPO = "jaxtrpo, trpo_replay", "jaxtrpo, trpo"
TARGETS: Mapping[str, tuple[int, ...]] = {
    "HalfCheetah-v5": (2_000, 5_000),
    "Hopper-v5": (2_000,),
    "Walker2d-v5": (3_000,),
    "Humanoid-v4": (2_000,),
}
TOTAL_STEPS = 1_000_000
SYSTEMS: Mapping[str, System] = {
    OURS: System(TRAIN, {"algorithm": "trpo_replay", "eval_every": 20_000}, "as it comes"),
    TRPO: System(
        TRAIN, {"algorithm": "trpo", "discount": USUAL_DISCOUNT, "eval_every": 20_000}, f"discount {USUAL_DISCOUNT}"
    ),
    **{
        f"{name}, {algorithm.upper()}": peer_system(
            "sb3.py",
            what,
            library=library,
            algorithm=algorithm,
            vectorize="in_process",
            eval_every=10_000,
            **sizes,
        )
        for name, library in (("Stable-Baselines3", "sb3"), ("SBX", "sbx"))
        for algorithm, what, sizes in (
            ("sac", "its defaults, 10,000 random steps first", {"num_envs": 1, "steps_per_update": 1}),
            ("ppo", "16 environments, 2,048 steps an update", {"num_envs": 16, "steps_per_update": 2_048}),
        )
    },
}
COLUMNS = ("env", "system", "round", "target", "seconds", "env_steps", "watched")


class Training(NamedTuple):
    """What one training showed."""

    env: str
    system: str
    round: int
    reached: dict[str, tuple[float, float]]  # target -> seconds and environment steps; none that was not reached
    watched: float  # seconds
    made_with: str


def train(env: str, system: str, number: int, total_steps: int, patience: float) -> Training:
    """Runs one training; others until they are there or `patience`, seconds, is at an end."""
    targets = TARGETS[env]
    found = SYSTEMS[system].train(
        env, number, total_steps, enough=lambda seconds, value: value >= max(targets) or seconds >= patience
    )
    reached = {}
    for target in targets:
        there = found.evaluations[found.evaluations[:, 2] >= target]
        if len(there):
            reached[str(target)] = (round(float(there[0, 1]), 1), float(there[0, 0]))
    watched = round(float(found.evaluations[:, 1].max(initial=0)), 1)
    return Training(env, system, number, reached, watched, f"{machine()}; {versions(('stable-baselines3', 'sbx-rl'))}")


def known(store: Path) -> list[Training]:
    found = [Training(**each) for each in read_lines(store)]
    order = list(TARGETS), list(SYSTEMS)
    return sorted(found, key=lambda each: (order[0].index(each.env), order[1].index(each.system), each.round))


def main() -> None:
    parser = options_of_runs(__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--patience", type=float, default=PATIENCE, help="of what ours took; how long others have")
    parser.add_argument("--tasks", nargs="+", choices=TARGETS, default=list(TARGETS))
    arguments = parser.parse_args()
    extent = extent_of("time_to_return", (), quick=arguments.quick)
    store = extent.folder / "trainings.jsonl"
    if not arguments.summary:
        require_peers(("sbx", "stable_baselines3", "torch"))
        total_steps = 20_480 if arguments.quick else TOTAL_STEPS
        for number in range(1 if arguments.quick else arguments.rounds):
            for env in arguments.tasks[:1] if arguments.quick else arguments.tasks:
                fill(env, number, total_steps, store, arguments.patience)
    found = known(store)
    require_runs("time_to_return", {each.env: each for each in found})
    write_csv(extent.folder / "trainings.csv", COLUMNS, rows(found))
    (extent.folder / "README.md").write_text(summary(found))
    print(summary(found))


def fill(env: str, number: int, total_steps: int, store: Path, times: float) -> None:
    """Trains with each system that has not been yet; ours are the first, and others have `times` what they took."""
    patience = float("inf")
    for system in SYSTEMS:
        done = [each for each in known(store) if (each.env, each.system, each.round) == (env, system, number)]
        training = done[0] if done else train(env, system, number, total_steps, patience)
        if not done:
            append_line(store, training._asdict())
        print(f"{env} {system} round {number}: {training.reached}", flush=True)
        if system == OURS:
            highest = training.reached.get(str(max(TARGETS[env])))
            patience = times * (highest[0] if highest else training.watched)


def rows(found: Sequence[Training]) -> Iterator[tuple[Any, ...]]:
    for each in found:
        for target in TARGETS[each.env]:
            seconds, steps = each.reached.get(str(target), (None, None))
            yield each.env, each.system, each.round, target, seconds, steps, each.watched


def summary(found: Sequence[Training]) -> str:
    made_with = " and ".join(dict.fromkeys(each.made_with for each in found))
    lines = [
        "# How long until a return is reached?",
        "",
        f"`python experiments/time_to_return.py` on {made_with}. One training at a time, in turns. Seconds from the "
        "command to the first evaluation, ten deterministic episodes, that reaches the return; medians over rounds. "
        "Ours compile everything first and their evaluations count; those of the others do not. Times ours: over "
        "the seconds of `trpo_replay` in the same round; above that, where the return was not reached while it was "
        "watched.",
        "",
        "| task | return | system | seconds | environment steps | times ours | rounds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for env, targets in TARGETS.items():
        for target in targets:
            for system in SYSTEMS:
                trainings = [each for each in found if (each.env, each.system) == (env, system)]
                if trainings:
                    lines.append(f"| {env} | {target:,} | {system} | {' | '.join(cells(trainings, target, found))} |")
    lines += ["", *(f"- {name}: {system.what}" for name, system in SYSTEMS.items())]
    return "\n".join(lines) + "\n"


def cells(trainings: Sequence[Training], target: int, found: Sequence[Training]) -> list[str]:
    key = str(target)
    there = [each.reached[key] for each in trainings if key in each.reached]
    most = len(there) * 2 > len(trainings)
    seconds = statistics.median([each[0] for each in there]) if most else None
    steps = statistics.median([each[1] for each in there]) if most else None
    ratios, complete = [], True
    for each in trainings:
        ours = next((one for one in found if (one.env, one.system, one.round) == (each.env, OURS, each.round)), None)
        if ours is not None and key in ours.reached:
            ratios.append((each.reached[key][0] if key in each.reached else each.watched) / ours.reached[key][0])
            complete &= key in each.reached
    ratio = f"{'' if complete else 'above '}{statistics.median(ratios):.1f}" if ratios else "-"
    return [
        f"{seconds:.0f}" if seconds is not None else f"not in {max(each.watched for each in trainings):.0f}",
        f"{steps:,.0f}" if steps is not None else "-",
        ratio,
        str(len(trainings)),
    ]


if __name__ == "__main__":
    main()
