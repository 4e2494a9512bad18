"""What does the bridge to Gymnasium cost? Collecting with a policy, against Gymnasium's vector modes without one.

    pip install '.[experiments]' 'gymnasium[box2d]'
    python experiments/bridge.py [--quick]

Ours collects on all cores: a policy of 64-64 acts, episodes end and begin, and the batch is what learning needs.
Gymnasium's modes step random actions, each in a process of its own that has the whole machine while it is asked.
Everything takes turns, round by round, and a figure is the median over rounds of a ratio within a round. Written to
experiments/results/bridge/.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping

from jaxtrpo.parallel.devices import choose_actors

ACTORS = choose_actors()  # before anything starts JAX

import jax  # noqa: E402

from common.comparison import extent_of, options  # noqa: E402
from common.machine import machine, versions  # noqa: E402
from common.peer import peer  # noqa: E402
from common.tables import write_csv  # noqa: E402
from jaxtrpo.envs.abilities import require_working  # noqa: E402
from jaxtrpo.training.train import prepare  # noqa: E402

# What each task has, with a guess of steps per second; their own vector entry point is in one process, as "sync" is.
MODES: Mapping[str, Mapping[str, float]] = {
    "CartPole-v1": {"vector_entry_point": 3e5, "sync": 1e5, "async": 3e4},
    "LunarLander-v3": {"sync": 2e4, "async": 2e4},
}
NUM_ENVS = (16, 64)
OURS, FASTEST = "jaxtrpo, with a policy", "the fastest of Gymnasium"
ASKED = 0.8

Round = Callable[[], float]  # environment steps per second
Found = Mapping[tuple[str, int], Mapping[str, tuple[float, float]]]  # by task and environments: rate and ratio


def collecting(name: str, num_envs: int, actors: int, seconds: float) -> Round:
    """Collects batches of 64 steps of every environment, as many as take about so long."""
    steps = 64 * num_envs
    run = prepare(name, num_envs=num_envs, steps_per_update=steps, adapt="fixed", actors=actors)
    collect, state = run.update.lower(run.state).compile_collect(), run.state

    def batches(count: int) -> float:
        nonlocal state
        begin = time.perf_counter()
        for _ in range(count):
            state, _ = jax.block_until_ready(collect(state))
        seconds = time.perf_counter() - begin
        require_working(run.env)  # and its simulators live as long as it does
        return seconds

    batches(1)
    count = max(1, round(3 * seconds / batches(3)))
    return lambda: count * steps / batches(count)


def gymnasium_mode(name: str, mode: str, num_envs: int, steps: int, stack: contextlib.ExitStack) -> Round:
    words = [name, "--way", mode, "--num-envs", num_envs, "--steps", steps]
    one_round = stack.enter_context(peer("stepping.py", words))
    return lambda: steps * num_envs / one_round()


def measure(name: str, num_envs: int, *, seconds: float, rounds: int) -> dict[str, tuple[float, float]]:
    """Steps per second of every way, and their ratio to the fastest mode of Gymnasium; medians over rounds."""
    with contextlib.ExitStack() as stack:
        ways = {
            mode: gymnasium_mode(name, mode, num_envs, max(10, round(seconds * rate / num_envs)), stack)
            for mode, rate in MODES[name].items()
        }
        for actors in range(1, ACTORS.count + 1):
            ways[f"{OURS}, actors: {actors}"] = collecting(name, num_envs, actors, seconds)
        found = [{way: run() for way, run in ways.items()} for _ in range(rounds)]
    fastest = [max(each[mode] for mode in MODES[name]) for each in found]
    return {
        way: (
            statistics.median(each[way] for each in found),
            statistics.median(each[way] / limit for each, limit in zip(found, fastest, strict=True)),
        )
        for way in ways
    }


def main() -> None:
    arguments = options(__doc__).parse_args()
    seconds, rounds = (0.2, 2) if arguments.quick else (1.0, 9)
    folder = extent_of("bridge", (), quick=arguments.quick).folder
    found = {
        (name, number): measure(name, number, seconds=seconds, rounds=rounds) for name in MODES for number in NUM_ENVS
    }
    rows = (
        (*case, way, f"{rate:.0f}", f"{ratio:.3f}")
        for case, ways in found.items()
        for way, (rate, ratio) in ways.items()
    )
    write_csv(folder / "bridge.csv", ("env", "num_envs", "way", "steps_per_second", "over_fastest"), rows)
    (folder / "README.md").write_text(summary(found, rounds))
    print(summary(found, rounds))


def summary(found: Found, rounds: int) -> str:
    lines = [
        "# What does the bridge to Gymnasium cost?",
        "",
        f"`python experiments/bridge.py` on {machine()}; {versions(('gymnasium',))}. Environment steps per second, and "
        f"in brackets over {FASTEST} in the same round; medians of {rounds} rounds in which all take turns. Gymnasium "
        "steps random actions without a policy; ours acts with one of 64-64 and keeps the batch. Asked for: at least "
        f"{ASKED}.",
        "",
        "| task | environments | way | steps/s |",
        "| --- | --- | --- | --- |",
    ]
    for (name, number), ways in found.items():
        for way, (rate, ratio) in ways.items():
            lines.append(f"| {name} | {number} | {way} | {rate:,.0f} ({ratio:.2f}) |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
