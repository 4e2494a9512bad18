"""How long does one policy step take, here and in sb3-contrib? Gradient, conjugate gradient on all states, line search.

    pip install '.[experiments,baselines]'
    python experiments/policy_update.py [--quick]

A batch of HalfCheetah, 10 products with the Fisher matrix, on all cores; the two take turns, with a rest between. The
critic is left out. Written to experiments/results/policy_update/.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from jaxtrpo.parallel.devices import choose_actors

choose_actors()  # before anything starts JAX

import jax  # noqa: E402

from common.comparison import extent_of, options  # noqa: E402
from common.machine import machine  # noqa: E402
from common.parts import Parts  # noqa: E402
from common.peer import peer, require_peers  # noqa: E402
from common.tables import write_csv  # noqa: E402
from common.words import defaults_of  # noqa: E402
from jaxtrpo.algorithms.trpo import trpo  # noqa: E402

TASK, STEPS, PRODUCTS = "HalfCheetah-v5", 20_480, 10
BY_DEFAULT = defaults_of(trpo)["fisher_samples"]
REST = 0.02  # seconds before each step: threads that wait for work of one would take the time of the other


class Ours:
    """A batch, and the policy step on it."""

    def __init__(self, *, fisher_samples: int):
        self._parts = Parts(TASK, STEPS, cg_iterations=PRODUCTS, fisher_samples=fisher_samples)
        run = self._parts.run
        state, self._batch = run.update.lower(run.state).compile_collect()(run.state)
        self._learner = state.learner
        self._found = jax.block_until_ready(self._parts.advantages(self._learner, self._batch))
        self.run()  # compiles

    def run(self) -> float:
        """Seconds of one step."""
        begin = time.perf_counter()
        jax.block_until_ready(self._parts.policy(self._learner, self._batch, self._found))
        return time.perf_counter() - begin


class Found(NamedTuple):
    """Medians over rounds, seconds; `ratio` is that of theirs over ours within a round."""

    ours: float
    ours_by_default: float  # Fisher matrix of fewer states
    theirs: float
    ratio: float


def measure(rounds: int) -> Found:
    ours, by_default = Ours(fisher_samples=STEPS), Ours(fisher_samples=BY_DEFAULT)

    def rested(run: Callable[[], float]) -> float:
        time.sleep(REST)
        return run()

    with peer("sb3_policy_update.py", [TASK, "--steps", STEPS, "--cg-iterations", PRODUCTS]) as theirs:
        times = [(rested(ours.run), rested(by_default.run), rested(theirs)) for _ in range(rounds)]
    mine, default, others = map(statistics.median, zip(*times, strict=True))
    return Found(mine, default, others, statistics.median(theirs / mine for mine, _, theirs in times))


def main() -> None:
    arguments = options(__doc__).parse_args()
    require_peers()
    rounds = 3 if arguments.quick else 100
    folder = extent_of("policy_update", (), quick=arguments.quick).folder
    found = measure(rounds)
    write_csv(folder / "seconds.csv", Found._fields, [[f"{value:.5g}" for value in found]])
    text = f"""# How long does one policy step take?

`python experiments/policy_update.py` on {machine()}. {STEPS:,} states of {TASK}: gradient, {PRODUCTS} products with the
Fisher matrix of all states, line search; no critic. Medians of {rounds} rounds in turns, each step after a rest of
{1e3 * REST:.0f} ms, which favours jaxtrpo by about a tenth (`experiments/results/throughput/NOTES.md`).

| | milliseconds |
| --- | --- |
| jaxtrpo | {1e3 * found.ours:.1f} |
| jaxtrpo, Fisher matrix of {BY_DEFAULT} states (default) | {1e3 * found.ours_by_default:.1f} |
| sb3-contrib | {1e3 * found.theirs:.1f} |

sb3-contrib takes {found.ratio:.1f} times as long.
"""
    (folder / "README.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
