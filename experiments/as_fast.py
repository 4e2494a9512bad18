"""Is learning without images and memory as fast as it was before policies could see and remember?

    pip install '.[experiments]'
    python experiments/as_fast.py [--against 46bf5bf] [--rounds 7] [--quick]

Trains with the default settings and updates of 4,096 steps, by the commit before policies had memory and by the code as
it lies here, in turns, with the seeds of the rounds. A figure is the median over rounds of a ratio within a round; in a
run, it is the median over updates. Written to experiments/results/as_fast/.
"""

from __future__ import annotations

import statistics

from common.commits import run, then_and_now
from common.comparison import extent_of, options
from common.machine import machine
from common.tables import write_csv
from jaxtrpo.parallel.machine import available_cores

AGAINST = "46bf5bf"  # the commit before policies had memory
UPDATES = {"Reacher-v5": 60, "HalfCheetah-v5": 60, "Hopper-v5": 40, "Humanoid-v5": 16, "Ant-v5": 20}
FIRST = 5  # updates that do not count: they compile, and the first batches are shorter
ROUNDS = 7
STEPS_PER_UPDATE = 4_096
ASKED = 0.02  # by how much it may be slower


def seconds_of_update(rows: list[dict[str, str]]) -> float:
    """Returns the median time of an update, collecting included."""
    ends = [float(row["wall_seconds"]) for row in rows]
    return statistics.median(after - before for before, after in zip(ends[FIRST:], ends[FIRST + 1 :], strict=False))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--against", default=AGAINST, metavar="COMMIT")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    rounds = 1 if given.quick else given.rounds
    rows, ratios = [], {task: [] for task in UPDATES}
    with then_and_now(given.against) as (folder, code):
        for number in range(rounds):
            for task, updates in UPDATES.items():
                settings = {
                    "total_steps": updates * STEPS_PER_UPDATE,
                    "steps_per_update": STEPS_PER_UPDATE,
                    "adapt": "fixed",
                    "actors": available_cores(),
                    "seed": number,
                }
                found = {
                    when: seconds_of_update(
                        run(place, task, settings, folder / f"{task}-{number}-{when}", folder / f"cache-{when}")
                    )
                    for when, place in code.items()
                }
                ratios[task].append(found["now"] / found["then"])
                rows.append((task, number, *(f"{1e3 * found[when]:.2f}" for when in code)))
                print(f"round {number}: {task} {ratios[task][-1]:.3f}", flush=True)
    results = extent_of("as_fast", (), quick=given.quick).folder
    write_csv(results / "runs.csv", ("task", "round", "then_ms", "now_ms"), rows)
    (results / "README.md").write_text(summary(ratios, given.against))
    print(summary(ratios, given.against))


def summary(ratios: dict[str, list[float]], against: str) -> str:
    """Returns the text of README.md."""
    rounds = len(ratios["Ant-v5"])
    lines = [
        "# Is learning without images and memory as fast as before?",
        "",
        f"`python experiments/as_fast.py` on {machine()}: the time of an update of {STEPS_PER_UPDATE:,} steps now over "
        f"that at commit {against}, before policies had memory or saw images; medians of {rounds} rounds in turns, and "
        f"their range. Asked: at most {1 + ASKED:g}.",
        "",
        "| task | time now over time then |",
        "| --- | --- |",
    ]
    for task, found in ratios.items():
        lines.append(f"| {task} | {statistics.median(found):.3f} ({min(found):.3f} to {max(found):.3f}) |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
