"""How close to the limit of the physics? Collecting, whole updates, and other ways to step the same simulations.

    pip install '.[experiments,baselines]'
    python experiments/throughput.py [--quick]

The limit is `mujoco.batch.Batch` stepping 64 simulations a core with one thread a core, through the actions that our
policy took. It is taken as it comes and times its stages, which ours does not; what it does without that has a row of
its own. Everything takes turns, round by round, and a figure is the median over rounds of a ratio within a round. The
other ways step random actions without a policy, each in a process of its own. Written to
experiments/results/throughput/.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping

from jaxtrpo.parallel.devices import choose_actors

ACTORS = choose_actors()  # before anything starts JAX

import jax  # noqa: E402

from common.collecting import Collecting  # noqa: E402
from common.comparison import extent_of, options  # noqa: E402
from common.machine import machine  # noqa: E402
from common.peer import peer, require_peers  # noqa: E402
from common.tables import write_csv  # noqa: E402
from jaxtrpo.envs.mujoco.libmujoco import untimed  # noqa: E402
from jaxtrpo.training.train import prepare  # noqa: E402

TASKS = ("Reacher-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "Ant-v5")
RAW, UNTIMED = "raw physics", "raw physics that does not time its stages"
ENVS_PER_ACTOR = (64, 8)  # collecting; the first of them is the limit's as well
UPDATES = {1_024: 16, 4_096: 64, 20_480: 128}  # steps of an update -> environments of all actors
OTHERS = {"envpool": 64 * ACTORS.count, "sync": 16, "async": 16}  # environments
WORDS = {"envpool": "EnvPool", "sync": "Gymnasium, in one process", "async": "Gymnasium, a process an environment"}

Round = Callable[[], float]  # environment steps per second


def without_timing(stepping: Round) -> Round:
    """The same while MuJoCo has no clock."""

    def one_round() -> float:
        with untimed():
            return stepping()

    return one_round


@contextlib.contextmanager
def other_way(env: str, way: str, seconds: float, rate: float) -> Iterator[Round]:
    """Rounds of about so many seconds, if it steps at this rate."""
    num_envs = OTHERS[way]
    steps = max(10, round(seconds * rate / num_envs))
    words = [env, "--way", way, "--num-envs", num_envs, "--steps", steps, "--cores", ACTORS.count]
    with peer("stepping.py", words) as one_round:
        yield lambda: steps * num_envs / one_round()


def whole_update(name: str, steps_per_update: int, num_envs: int, seconds: float) -> Round:
    """Collecting and learning of a training run, as many updates as take about so long."""
    run = prepare(name, adapt="fixed", steps_per_update=steps_per_update, num_envs=num_envs)
    state, lowered = run.state, run.update.lower(run.state)
    collect, learn = lowered.compile_collect(), lowered.compile_learn()

    def updates(count: int) -> float:
        nonlocal state
        begin = time.perf_counter()
        for _ in range(count):
            state, batch = collect(state)
            state, metrics = learn(state, batch)
            jax.block_until_ready(metrics)
        return time.perf_counter() - begin

    updates(1)
    count = max(1, round(3 * seconds / updates(3)))
    return lambda: count * steps_per_update / updates(count)


def measure(name: str, *, seconds: float, rounds: int) -> dict[str, tuple[float, float]]:
    """Steps per second of every way, and their ratio to the limit; medians over rounds."""
    ways: dict[str, Round] = {}
    with contextlib.ExitStack() as stack:
        for number, envs in enumerate(ENVS_PER_ACTOR):
            collecting = Collecting.lasting(name, ACTORS, envs, seconds=seconds)
            simulations = collecting.simulations()
            ways[f"collecting, {envs} environments an actor"] = lambda c=collecting: c.steps / c.run()
            size = f", {envs} simulations a core" if number else ""
            ways[RAW + size] = lambda c=collecting, s=simulations: c.steps / c.raw(s)
            ways[UNTIMED + size] = without_timing(ways[RAW + size])
        for steps, envs in UPDATES.items():
            ways[f"update of {steps:,} steps, {envs} environments"] = whole_update(name, steps, envs, seconds)
        limit = ways[RAW]()
        for way, guess in (("envpool", limit), ("sync", limit / 5), ("async", limit / 5)):
            ways[f"{WORDS[way]}, {OTHERS[way]} environments"] = stack.enter_context(
                other_way(name, way, seconds, guess)
            )
        found = [{way: run() for way, run in ways.items()} for _ in range(rounds)]
    return {
        way: (
            statistics.median(each[way] for each in found),
            statistics.median(each[way] / each[RAW] for each in found),
        )
        for way in ways
    }


def main() -> None:
    arguments = options(__doc__).parse_args()
    require_peers()
    seconds, rounds = (0.2, 2) if arguments.quick else (1.0, 9)
    folder = extent_of("throughput", (), quick=arguments.quick).folder
    tasks = TASKS[:2] if arguments.quick else TASKS
    found = {name: measure(name, seconds=seconds, rounds=rounds) for name in tasks}
    rows = (
        (name, way, f"{rate:.0f}", f"{ratio:.3f}")
        for name, ways in found.items()
        for way, (rate, ratio) in ways.items()
    )
    write_csv(folder / "throughput.csv", ("env", "way", "steps_per_second", "over_raw"), rows)
    (folder / "README.md").write_text(summary(found, rounds))
    print(summary(found, rounds))


def summary(found: Mapping[str, Mapping[str, tuple[float, float]]], rounds: int) -> str:
    lines = [
        "# How close to the limit of the physics?",
        "",
        f"`python experiments/throughput.py` on {machine()}. Environment steps per second over those of raw physics "
        f"({ENVS_PER_ACTOR[0]} simulations a core), medians of {rounds} rounds in which all take turns; in the first "
        "row, steps per second. While ours steps, MuJoCo does not time its stages. Updates have the default critic and "
        "collect, learn and count everything. EnvPool and Gymnasium step random actions without a policy.",
        "",
        f"| | {' | '.join(found)} |",
        f"| --- |{' --- |' * len(found)}",
        f"| {RAW}, steps/s | {' | '.join(f'{ways[RAW][0]:,.0f}' for ways in found.values())} |",
    ]
    for way in next(iter(found.values())):
        if way != RAW:
            lines.append(f"| {way} | {' | '.join(f'{ways[way][1]:.2f}' for ways in found.values())} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
