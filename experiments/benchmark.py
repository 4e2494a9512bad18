"""Speed: collecting against the raw limit of the physics, two actors against one, and the time to the first update.

    python experiments/benchmark.py [--quick]

Each figure is a ratio of things timed alternately in one process; the medians of several rounds are written to
experiments/results/benchmark/README.md.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from jaxtrpo.parallel.actors import Actors
from jaxtrpo.parallel.devices import choose_actors

ACTORS = choose_actors()  # before anything starts JAX

from common.collecting import Collecting  # noqa: E402
from common.machine import machine  # noqa: E402
from common.runs import TRAIN, with_cache  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "benchmark"


def collecting_ratio(name: str, envs_per_actor: int, *, seconds: float, rounds: int) -> dict:
    """Steps/s of all actors over those of the raw limit."""
    collecting = Collecting.lasting(name, ACTORS, envs_per_actor, seconds=seconds)
    simulations = collecting.simulations()
    ours, limit = [], []
    for _ in range(rounds):
        ours.append(collecting.run())
        limit.append(collecting.raw(simulations))
    ratio = statistics.median(raw / mine for raw, mine in zip(limit, ours, strict=True))
    return {
        "what": f"collecting {name}, {envs_per_actor} environments an actor",
        "ratio": ratio,
        "detail": f"{collecting.steps / statistics.median(ours):,.0f} of "
        f"{collecting.steps / statistics.median(limit):,.0f} steps/s",
    }


def actor_ratio(name: str, envs_per_actor: int, *, rounds: int) -> dict:
    """Steps/s of two actors over those of one."""
    one = Collecting(name, Actors(ACTORS.devices[:1]), envs_per_actor, 20)
    two = Collecting(name, Actors(ACTORS.devices[:2]), envs_per_actor, 20)
    times = [(one.run(), two.run()) for _ in range(rounds)]
    ratio = statistics.median(2 * a / b for a, b in times)
    return {"what": f"two actors over one, {name}, {envs_per_actor} environments each", "ratio": ratio, "detail": ""}


def startup_seconds(*, rounds: int) -> list[dict]:
    """From typing the command to the first finished update, with an empty and with a filled compilation cache."""
    with tempfile.TemporaryDirectory() as folder:

        def first_update(out: str, cache: str) -> float:
            out = f"{folder}/{out}"
            command = [*TRAIN, "HalfCheetah-v5", "--algorithm", "trpo", "--out", out, "--quiet"]
            environment = with_cache(f"{folder}/{cache}")
            begin = time.perf_counter()
            process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
            metrics = Path(out) / "metrics.csv"
            while not (metrics.exists() and metrics.read_text().count("\n") > 1):
                if process.poll() is not None:
                    raise RuntimeError("the training command ended before its first update")
                time.sleep(0.01)
            elapsed = time.perf_counter() - begin
            process.kill()
            process.wait()
            return elapsed

        cold = [first_update(f"cold{i}", f"cache{i}") for i in range(rounds)]
        warm = [first_update(f"warm{i}", "cache0") for i in range(rounds)]
    return [
        {"what": "first update, cold", "seconds": statistics.median(cold)},
        {"what": "first update, warm compilation cache", "seconds": statistics.median(warm)},
    ]


def report(rows: list[dict]) -> str:
    """The table, and the machine it was made on."""
    lines = [
        "# Speed",
        "",
        f"`python experiments/benchmark.py` on {machine()}. Medians of alternating rounds.",
        "",
        "| figure | measured | |",
        "| --- | --- | --- |",
    ]
    for row in rows:
        value = f"{row['ratio']:.2f}" if "ratio" in row else f"{row['seconds']:.1f} s"
        lines.append(f"| {row['what']} | {value} | {row.get('detail', '')} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short rounds, nothing is written")
    quick = parser.parse_args().quick
    rounds, seconds = (2, 0.3) if quick else (9, 1.5)
    rows = [
        collecting_ratio(name, envs, seconds=seconds, rounds=rounds)
        for name, envs in [
            ("HalfCheetah-v5", 64),
            ("HalfCheetah-v5", 16),
            ("Humanoid-v5", 64),
            ("Reacher-v5", 64),
        ]
    ]
    if ACTORS.count > 1:
        rows.append(actor_ratio("HalfCheetah-v5", 64, rounds=rounds))
    rows += startup_seconds(rounds=1 if quick else 5)
    text = report(rows)
    print(text)
    if not quick:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "README.md").write_text(text)


if __name__ == "__main__":
    main()
