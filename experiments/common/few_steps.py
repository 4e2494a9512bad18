"""What algorithms that learn from a replay buffer reach in few steps: a table of evaluations and returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from common.comparison import Comparison, Curves, Settings, compare, mean_and_each, options_of_runs
from common.statistics import evaluated, final

SEEDS = (0, 1, 2, 3, 4)


def main(
    description: str | None,
    *,
    name: str,
    question: str,
    tasks: Mapping[str, int],
    variants: Mapping[str, Settings],
    evaluations: int,
    fewer_seeds: Mapping[str, Sequence[int]] = {},
    digits: Mapping[str, int] = {},
    others: Callable[[str], str] | None = None,
) -> None:
    """Trains what is missing, and writes the results.

    Args:
      description: of the script.
      name: of the script, and of the folder of results.
      question: title of the results.
      tasks: environment steps of each task.
      variants: settings by label.
      evaluations: number of them while training.
      fewer_seeds: seeds of some tasks.
      digits: digits of the returns of some tasks; none by default.
      others: what others reach on a task, if there is such a column.
    """
    arguments = options_of_runs(description).parse_args()

    def of_task(env: str) -> dict[str, Settings]:
        length = {"total_steps": tasks[env], "eval_every": tasks[env] // evaluations}
        return {label: {**settings, **length} for label, settings in variants.items()}

    def conclude(curves: Curves) -> Iterator[str]:
        labelled = ["settings"] if len(variants) > 1 else []
        columns = ["task", "steps", *labelled, "deterministic", "exploring", *(["of others"] if others else [])]
        yield from (
            "",
            "Mean of the last three evaluations, and return of the exploring policy in the last twentieth, mean over "
            "seeds and each of them.",
            "",
            _line(columns),
            _line(["---"] * len(columns)),
        )
        for env, by_label in curves.items():
            for label, runs in by_label.items():
                deterministic = mean_and_each([evaluated(curve, tasks[env]) for curve in runs], digits.get(env, 0))
                exploring = mean_and_each([final(curve) for curve in runs], digits.get(env, 0))
                shown = [env, f"{tasks[env]:,}", *([label] if labelled else []), deterministic, exploring]
                yield _line([*shown, *([others(env)] if others else [])])

    compare(
        Comparison(
            name=name,
            question=question,
            envs=tuple(tasks),
            variants=of_task,
            seeds=SEEDS,
            fewer_seeds=fewer_seeds,
            conclude=lambda curves: [] if arguments.quick else list(conclude(curves)),
        ),
        arguments,
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
