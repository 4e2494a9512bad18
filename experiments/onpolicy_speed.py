"""How fast are PPO and A2C, against Stable-Baselines3 and against SBX, its version in JAX? At equal settings.

    pip install '.[experiments,baselines]'
    python experiments/onpolicy_speed.py [--quick] [--rounds 3] [--total-steps 100000]

Each training is a command with the whole machine to itself; systems take turns, round by round, with another seed each
round. Ours start with nothing compiled, as the first time on a machine, and again with what was compiled then. The
others step their environments in the process of the learner. Written to experiments/results/onpolicy_speed/.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from common.comparison import extent_of, options
from common.machine import machine, versions
from common.peer import require_peers
from common.systems import System, our_systems, peer_system
from common.tables import write_csv
from common.watch import Watched

TASK, ROUNDS, TOTAL_STEPS = "HalfCheetah-v5", 3, 100_000
OURS, SB3, SBX = "jaxtrpo", "Stable-Baselines3", "SBX"
COLUMNS = ("algorithm", "system", "round", "env_steps", "steps_per_second", "seconds", "return", "memory")
ASKED = {("PPO", SB3): 10, ("PPO", SBX): 5}  # how many times faster ours shall be

_PPO = {"num_envs": 16, "steps_per_update": 2_048}
_A2C = {"num_envs": 16, "steps_per_update": 80}


def _peer(library: str, algorithm: str, what: str, **settings: Any) -> System:
    return peer_system("sb3.py", what, library=library, algorithm=algorithm, vectorize="in_process", **settings)


SYSTEMS: dict[str, dict[str, System]] = {  # by algorithm
    "PPO": {
        **our_systems(
            OURS,
            "policy and critic: 10 passes over the batch in minibatches of 64, Adam with learning rate 3e-4",
            algorithm="ppo",
            critic="mlp(epochs=10, minibatch_size=64, learning_rate=3e-4)",
            **_PPO,
        ),
        SB3: _peer("sb3", "ppo", "the same, with one optimizer for both", **_PPO),
        SBX: _peer("sbx", "ppo", "the same", **_PPO),
    },
    "A2C": {
        **our_systems(
            OURS,
            "one gradient step of the policy and one of the critic on the whole batch, gae_lambda 1",
            algorithm="a2c(gae_lambda=1.0, entropy_bonus=0.0)",
            adapt="fixed",
            critic="mlp(epochs=1, minibatch_size=80, learning_rate=7e-4)",
            **_A2C,
        ),
        SB3: _peer("sb3", "a2c", "one gradient step of both together, RMSprop with learning rate 7e-4", **_A2C),
    },
}


class Speed(NamedTuple):
    """What one training showed."""

    env_steps: float
    steps_per_second: float  # from the end of the first update to the end of the last
    seconds: float  # from the command to the end of the last update
    mean_return: float  # of the last 100 episodes; NaN if none has ended
    memory: float  # bytes, the most there was

    @property
    def from_command(self) -> float:
        """Environment steps per second with everything that comes before the first."""
        return self.env_steps / self.seconds


Found = Mapping[tuple[str, str], Sequence[Speed]]  # by algorithm and system, in the order of rounds


def speed_of(found: Watched) -> Speed:
    return Speed(
        env_steps=float(found.env_steps[-1]),
        steps_per_second=found.steps_per_second,
        seconds=float(found.seconds[-1]),
        mean_return=float(found.returns[-1]),
        memory=float(found.memory.max()),
    )


def measure(rounds: int, total_steps: int) -> Found:
    """Trains everything, in turns."""
    found: dict[tuple[str, str], list[Speed]] = {}
    for number in range(rounds):
        for algorithm, systems in SYSTEMS.items():
            for name, system in systems.items():
                speed = speed_of(system.train(TASK, number, total_steps))
                found.setdefault((algorithm, name), []).append(speed)
                print(f"round {number} {algorithm} {name}: {speed.steps_per_second:.0f} steps/s", flush=True)
    return found


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--total-steps", type=int, default=TOTAL_STEPS, help="of each training")
    arguments = parser.parse_args()
    require_peers(("sbx", "stable_baselines3", "torch"))
    rounds, total_steps = (1, 20_480) if arguments.quick else (arguments.rounds, arguments.total_steps)
    found = measure(rounds, total_steps)
    folder = extent_of("onpolicy_speed", (), quick=arguments.quick).folder
    write_csv(folder / "runs.csv", COLUMNS, rows(found))
    (folder / "README.md").write_text(summary(found))
    print(summary(found))


def rows(found: Found) -> Iterator[tuple[Any, ...]]:
    for case, speeds in found.items():
        for number, each in enumerate(speeds):
            figures = each.steps_per_second, each.seconds, each.mean_return
            yield *case, number, int(each.env_steps), *(f"{value:.2f}" for value in figures), int(each.memory)


def summary(found: Found) -> str:
    rounds = len(next(iter(found.values())))
    packages = versions(("stable-baselines3", "sbx-rl", "torch", "gymnasium"))
    lines = [
        "# How fast are PPO and A2C, against Stable-Baselines3 and against SBX?",
        "",
        f"`python experiments/onpolicy_speed.py` on {machine()}; {packages}. {TASK}, 16 environments, one training at "
        f"a time, in turns. Medians over rounds ({rounds}), and their range. Steps per second once from the end of the "
        "first update to the end of the last, which leaves out starting and nearly all compiling, and once from the "
        "command, with everything. How many times faster ours is, within a round; from the command, ours with nothing "
        "compiled. The return is the mean of the last 100 episodes while exploring.",
        "",
        "| algorithm | system | steps/s | ours over it | from the command, steps/s | ours over it | return |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (algorithm, name), speeds in found.items():
        cells = (
            spread([each.steps_per_second for each in speeds], ",.0f"),
            spread(ratios(found, algorithm, name), ".1f"),
            spread([each.from_command for each in speeds], ",.0f"),
            spread(ratios(found, algorithm, name, from_command=True), ".1f"),
            spread([each.mean_return for each in speeds], ",.0f"),
        )
        lines.append(f"| {algorithm} | {name} | {' | '.join(cells)} |")
    lines.append("")
    for (algorithm, name), asked in ASKED.items():
        reached = statistics.median(ratios(found, algorithm, name))
        lines.append(f"- {algorithm} over {name}: {reached:.1f} times as many steps/s; asked for: {asked}")
    lines += [
        "",
        "PPO: 2,048 steps an update, clipping at 0.2, discount 0.99, gae_lambda 0.95, no bonus for entropy. A2C: 80 "
        "steps an update; SBX has none. Policies and critics are separate networks of 64-64 tanh. Observations are "
        "normalised by running moments, and so are rewards (the others) or returns (ours).",
        "",
    ]
    for algorithm, systems in SYSTEMS.items():
        lines += [f"- {algorithm}, {name}: {system.what}" for name, system in systems.items()]
    return "\n".join(lines) + "\n"


def ratios(found: Found, algorithm: str, name: str, *, from_command: bool = False) -> list[float]:
    """How many times faster ours is than this system, in each round."""

    def rate(speed: Speed) -> float:
        return speed.from_command if from_command else speed.steps_per_second

    pairs = zip(found[algorithm, OURS], found[algorithm, name], strict=True)
    return [rate(ours) / rate(other) for ours, other in pairs]


def spread(values: Sequence[float], form: str) -> str:
    """The median, and the range if there are several; a dash where one is missing."""
    if np.isnan(values).any():
        return "-"
    median = format(statistics.median(values), form)
    return median if len(values) == 1 else f"{median} ({min(values):{form}} to {max(values):{form}})"


if __name__ == "__main__":
    main()
