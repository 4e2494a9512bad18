"""Mutation testing: runs the tests of each module with one plausible mistake in it at a time.

    pip install '.[experiments,test]'
    python experiments/mutation.py [--quick] [--modules ops/cg rollout/replay ...] [--mutants 12] [--workers 2]
        [--minutes 30]

Mutants are made by common/mutants.py; a fixed number of each module is drawn with a fixed seed. Outcomes are kept in
experiments/results/mutation/mutants.csv and are not recomputed: the same command resumes an interrupted run, a killed
mutant counts until its module changes, and a surviving mutant is run again once its tests have changed. Mutants that
are equivalent to the original are listed with the reason in equivalent.csv beside it.
"""

from __future__ import annotations

import argparse
import csv
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

WORK = Path(tempfile.gettempdir()) / "jaxtrpo-mutation"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(WORK / "compiled"))

# Imports of the tests and the package, made once for all child processes. JAX must not have started before the fork.
import gymnasium  # noqa: E402, F401
import hypothesis  # noqa: E402, F401
import jax  # noqa: E402
import optax  # noqa: E402, F401
import pytest  # noqa: E402
import scipy.linalg  # noqa: E402, F401
from brax import envs  # noqa: E402, F401
from flax import linen  # noqa: E402, F401

from common.mutants import Mutant, mutants_of, required_arguments  # noqa: E402
from common.tables import write_csv  # noqa: E402

ROOT = Path(__file__).parent.parent
RESULTS, QUICK = ROOT / "experiments" / "results" / "mutation", Path("runs") / "quick" / "mutation"
SEED, MUTANTS = 0, 12
COLUMNS = ("module", "line", "where", "nth", "kind", "before", "after", "outcome", "by", "seconds", "source", "tests")
AT_LEAST = 30.0  # shortest time limit of a test run, seconds


def through_train(*names: str) -> tuple[str, ...]:
    """Returns the tests of test_algorithms.py and test_probes.py for some algorithms."""
    laws = (
        "algorithms/test_algorithms.py::test_no_key_is_used_twice",
        "algorithms/test_algorithms.py::test_training_does_not_depend_on_number_of_actors",
        "algorithms/test_algorithms.py::test_resumed_run_equals_uninterrupted_run",
        "algorithms/test_probes.py::test_every_algorithm_finds_best_action_with_delayed_reward",
    )
    # The last test is left out for trpo, which has more of its own, and for naf, which looks only one step ahead.
    apart = {f"{laws[-1]}[{name}]" for name in ("trpo", "naf")}
    return tuple(test for law in laws for name in names if (test := f"{law}[{name}]") not in apart)


def without(file: str, *tests: str) -> tuple[str, ...]:
    """Returns a file without its slowest tests, which train for a while and find nothing that the others miss."""
    return file, *(f"--deselect=tests/{file}::{test}" for test in tests)


LEARNING = (
    "test_critic_learns_values_of_a_policy_off_policy",
    "test_wrong_critic_loses_its_weight_and_training_succeeds",
    "test_right_critic_is_confirmed_and_keeps_weight",
    "test_critic_explains_variance_during_a_run",
    "test_replay_trains_with_discrete_actions",
)
REPLAY = without("algorithms/trpo_replay/test_trpo_replay.py", *LEARNING)
GPS = without(
    "algorithms/gps/test_gps.py",
    "test_network_nearly_solves_linear_quadratic_task",
    "test_nothing_is_compiled_after_the_first_update",
    "test_mujoco_episodes_from_repeated_state_are_identical",
    "test_simulators_that_cannot_restore_states_are_refused",
)
NAF = without(
    "algorithms/test_naf.py",
    "test_naf_finds_best_action_for_each_observation",
)
DQN = without(
    "algorithms/test_dqn.py",
    "test_dqn_finds_the_best_choice_for_each_observation",
    "test_resumed_run_equals_uninterrupted_run",
)
SAC = ("algorithms/test_sac.py",)
MEMORY = without("algorithms/test_memory.py", "test_memory_solves_what_a_policy_without_cannot")
SHARED = without(
    "algorithms/test_shared_torso.py",
    "test_best_action_for_each_observation_is_found",
    "test_trainings_in_one_program_match_trainings_alone",
    "test_resumed_run_is_bit_identical_and_its_policy_is_saved",
    "test_memory_is_learned",
)
# Tests of each module: files, or single tests.
TESTS: dict[str, tuple[str, ...]] = {
    "adapt/improvement": ("adapt/test_adapt.py",),
    "adapt/model_accuracy": (*GPS, "adapt/test_adapt.py"),
    "adapt/rule": ("adapt/test_adapt.py",),
    "adapt/schedules": ("adapt/test_adapt.py",),
    "adapt/trust": ("adapt/test_adapt.py",),
    "algorithms/a2c": ("algorithms/test_first_order.py", *through_train("a2c")),
    "algorithms/trpo_replay/labels": (*REPLAY, *through_train("trpo_replay")[:1]),
    "algorithms/actor_critic": (
        "algorithms/test_learn.py",
        "algorithms/test_scales.py::test_learned_parameters_do_not_depend_on_units[trpo-0]",
        *through_train("trpo", "ppo"),
    ),
    "algorithms/advantages": ("algorithms/test_advantages.py", "algorithms/test_learn.py"),
    "algorithms/dqn": DQN,
    "algorithms/gps/gps": GPS,
    "algorithms/gps/imitation": ("algorithms/gps/test_imitation.py", *GPS),
    "algorithms/trpo_replay/weighting": (
        "algorithms/trpo_replay/test_weighting.py",
        "algorithms/trpo_replay/test_combined_step.py",
    ),
    "algorithms/trpo_replay/combined_step": (
        "algorithms/trpo_replay/test_combined_step.py",
        "algorithms/trpo_replay/test_weighting.py",
    ),
    "algorithms/gps/local_models": GPS,
    "algorithms/naf": (*NAF, *through_train("naf")[:2]),
    "algorithms/natural_gradient": ("algorithms/test_policy_step.py", "algorithms/test_natural_steps.py"),
    "algorithms/npg": ("algorithms/test_natural_steps.py", *through_train("npg")),
    "algorithms/pg": ("algorithms/test_first_order.py", *through_train("pg")),
    "algorithms/policy_gradient": ("algorithms/test_first_order.py",),
    "algorithms/ppo": ("algorithms/test_first_order.py", *through_train("ppo")),
    "algorithms/q_learning": (*DQN, *SAC, *NAF),
    "algorithms/sac": SAC,
    "algorithms/sequences": MEMORY,
    "algorithms/shared_torso": SHARED,
    "algorithms/trpo": ("algorithms/test_policy_step.py", "algorithms/test_learn.py", *through_train("trpo")),
    "algorithms/trpo_penalty": ("algorithms/test_natural_steps.py", *through_train("trpo_penalty")),
    "algorithms/trpo_replay/trpo_replay": (*REPLAY, *through_train("trpo_replay")[:2]),
    "algorithms/trust_region": (
        "algorithms/test_policy_step.py",
        "algorithms/test_natural_steps.py",
        "algorithms/test_learn.py",
    ),
    "rollout/collect": (
        "rollout/test_collect.py",
        "algorithms/gps/test_gps.py::test_batch_is_whole_episodes_from_same_initial_states",
        "algorithms/gps/test_gps.py::test_steps_after_early_termination_do_not_count",
    ),
    "critics/action_values": REPLAY,
    "critics/linear": ("critics/test_critics.py",),
    "critics/mlp": ("critics/test_critics.py", "algorithms/test_first_order.py"),
    "critics/reward_scale": (*NAF, "critics/test_critics.py"),
    "training/metrics": ("training/test_metrics.py", "adapt/test_adapt.py"),
    "training/selection": ("training/test_selection.py",),
    "algorithms/gps/bounded_lqr": ("algorithms/gps/test_lqr.py",),
    "ops/cg": ("ops/test_cg.py",),
    "ops/convolution": ("ops/test_convolution.py", "ops/test_multiply_adds.py", "policies/test_cnn.py"),
    "ops/descent": ("ops/test_descent.py",),
    "ops/fast_convolutions": ("ops/test_fast_convolutions.py",),
    "ops/in_parts": ("ops/test_in_parts.py", "ops/test_convolution.py"),
    "algorithms/gps/definite": ("algorithms/gps/test_lqr.py", "algorithms/gps/test_imitation.py"),
    "ops/fisher": ("ops/test_fisher.py",),
    "ops/gae": ("ops/test_gae.py", "algorithms/test_advantages.py"),
    "ops/keys": (
        "ops/test_keys.py",
        "ops/test_minibatches.py",
        "algorithms/gps/test_imitation.py",
        "algorithms/test_first_order.py::test_every_epoch_visits_all_samples_once_in_new_order",
        *through_train("ppo", "naf")[:2],
    ),
    "ops/line_search": ("ops/test_line_search.py",),
    "algorithms/gps/linear_fit": ("algorithms/gps/test_model_fits.py",),
    "ops/fisher_layers": ("ops/test_fisher.py",),
    "algorithms/gps/lqr": ("algorithms/gps/test_lqr.py",),
    "ops/minibatches": ("ops/test_minibatches.py", "rollout/test_replay.py", "critics/test_critics.py"),
    "ops/moments": ("ops/test_moments.py",),
    "ops/permutation": ("ops/test_permutation.py",),
    "algorithms/gps/quadratic_regression": ("algorithms/gps/test_model_fits.py",),
    "ops/running_mean": ("algorithms/test_advantages.py", "algorithms/test_learn.py"),
    "ops/segments": ("ops/test_segments.py",),
    "ops/tree": (
        "algorithms/test_learn.py",
        "algorithms/test_first_order.py",
        "algorithms/trpo_replay/test_weighting.py",
    ),
    "policies/cnn": ("policies/test_cnn.py",),
    "policies/frames": ("policies/test_frames.py",),
    "policies/masking": (
        *without("policies/test_masking.py", "test_training_takes_legal_moves_only"),
        "policies/test_value_head.py",
    ),
    "policies/recurrence": ("policies/test_recurrent.py", *MEMORY),
    "policies/recurrent": ("policies/test_recurrent.py", *MEMORY),
    "policies/squashed": ("policies/test_squashed.py", *SAC),
    "policies/value_head": ("policies/test_value_head.py", *SHARED),
    "rollout/replay": (
        "rollout/test_replay.py",
        "rollout/test_in_place.py",
        "algorithms/test_naf.py::test_target_of_constant_steps_matches_hand_calculation",
    ),
    "rollout/staggering": ("rollout/test_staggering.py", "rollout/test_collect.py"),
}


class Job(NamedTuple):
    """A test run of a module, with a mutant or without."""

    module: str
    mutant: Mutant | None
    source: str  # of the unchanged module

    @property
    def path(self) -> Path:
        return Path("jaxtrpo") / f"{self.module}.py"


class Running(NamedTuple):
    """A test run in a child process."""

    job: Job
    slot: Path  # its own copy of package and tests
    begun: float  # seconds since the epoch
    limit: float  # seconds


class Order:
    """Pytest plugin: runs the tests that have failed most often first, then the shortest."""

    def __init__(self, record: dict[str, Any]):
        self._record = record
        self.seconds: dict[str, float] = {}
        self.failed, self.why = "", ""

    def pytest_collection_modifyitems(self, items: list) -> None:
        kills, seconds = self._record["kills"], self._record["seconds"]
        items.sort(key=lambda item: (-kills.get(item.nodeid, 0), seconds.get(item.nodeid, 0.0)))

    def pytest_runtest_logreport(self, report) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed and not self.failed:
            self.failed, self.why = report.nodeid, str(report.longrepr)[-3000:]

    def pytest_collectreport(self, report) -> None:
        if report.failed and not self.failed:
            self.failed, self.why = report.nodeid, str(report.longrepr)[-3000:]


def run_tests(job: Job, slot: Path, record: dict[str, Any], log: Path) -> None:
    """Runs the tests in a child process, writes the findings to `log`, and exits."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    output = os.open(log.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1), os.dup2(output, 2)
    os.chdir(slot)
    os.environ["PYTHONPATH"] = str(slot)
    sys.path[:] = [str(slot), *(each for each in sys.path if each not in (str(ROOT), str(ROOT / "experiments")))]
    order = Order(record)
    flags = ["-n0", "-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    code = pytest.main(
        [*flags, *(each if each.startswith("-") else f"tests/{each}" for each in TESTS[job.module])], plugins=[order]
    )
    found = {"code": int(code), "failed": order.failed, "why": order.why, "seconds": order.seconds}
    log.write_text(json.dumps(found))
    os._exit(0)


def outcome_of(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "timeout"
    if found["code"] == 0:
        return "survived"
    if re.search(r"missing (\d+|a) required", found["why"]):
        return "invalid"  # the mutant cannot even be called
    return "killed"


class Runs:
    """Runs tests in child processes, a few at a time, each in its own copy of package and tests."""

    def __init__(self, workers: int, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._record_path = folder / "tests.json"
        self.record = {"kills": {}, "seconds": {}, "whole": {}, "sound": {}}
        self._all = digest(
            *(path.read_text() for name in ("jaxtrpo", "tests") for path in sorted((ROOT / name).rglob("*.py")))
        )
        if self._record_path.exists():
            self.record = json.loads(self._record_path.read_text())
        self._free, self._running = [], {}
        for number in range(workers):
            slot = folder / f"slot-{os.getpid()}-{number}"
            slot.mkdir()
            for name in ("jaxtrpo", "tests", "docs", "experiments"):
                shutil.copytree(ROOT / name, slot / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
            for name in ("pyproject.toml", "README.md"):
                shutil.copy(ROOT / name, slot)
            self._free.append(slot)
        self._slots, self._stamp = [*self._free], time.time()

    def pass_unchanged(self, module: str, until: float) -> bool:
        """Returns whether the tests of a module pass without a mutant."""
        source = (ROOT / "jaxtrpo" / f"{module}.py").read_text()
        if self.record["sound"].get(module) == self._all:
            return True
        for _, outcome, failed, seconds in self.results(iter([Job(module, None, source)]), until):
            print(f"{module}: " + (f"{failed} fails" if failed else f"tests take {seconds:.0f} s"), flush=True)
            return outcome == "survived"
        return False

    def results(self, jobs: Iterator[Job], until: float) -> Iterator[tuple[Job, str, str, float]]:
        """Yields (job, outcome, failed test, seconds) as jobs end; starts none after the time `until`."""
        while True:
            while self._free and time.time() < until and (job := next(jobs, None)) is not None:
                self._start(job)
            if not self._running:
                return
            time.sleep(0.05)
            for process in [*self._running]:
                running = self._running[process]
                late = time.time() - running.begun > running.limit
                if os.waitpid(process, os.WNOHANG)[0] or late:
                    yield self._end(process, late)

    def _start(self, job: Job) -> None:
        slot = self._free.pop()
        log = slot / "log.json"
        log.unlink(missing_ok=True)
        self._write(slot, job, job.mutant.applied(job.source) if job.mutant else job.source)
        limit = max(3 * self.record["whole"].get(job.module, 1e3), AT_LEAST)
        process = os.fork()
        if process == 0:
            try:
                run_tests(job, slot, self.record, log)
            finally:
                os._exit(1)
        self._running[process] = Running(job, slot, time.time(), limit)

    def _end(self, process: int, late: bool) -> tuple[Job, str, str, float]:
        job, slot, begun, _ = self._running.pop(process)
        try:
            os.killpg(process, signal.SIGKILL)  # and its own children
        except ProcessLookupError:
            pass
        if late:
            os.waitpid(process, 0)
        log, seconds = slot / "log.json", time.time() - begun
        found = json.loads(log.read_text()) if log.exists() else None
        if found is None and not late:  # the interpreter crashed
            found = {"code": 1, "failed": "crash", "why": "", "seconds": {}}
        self._write(slot, job, job.source)
        self._free.append(slot)
        outcome = outcome_of(found)
        if found is not None:
            if job.mutant is None and found["code"] == 0:
                self.record["seconds"].update(found["seconds"])
                self.record["whole"][job.module] = seconds
                self.record["sound"][job.module] = self._all
            elif outcome == "killed":
                self.record["kills"][found["failed"]] = self.record["kills"].get(found["failed"], 0) + 1
            self._record_path.write_text(json.dumps(self.record))
        return job, outcome, found["failed"].removeprefix("tests/") if found else "", seconds

    def _write(self, slot: Path, job: Job, source: str) -> None:
        path = slot / job.path
        path.write_text(source)
        self._stamp += 2  # cached bytecode is matched by the size and the time of its source, in seconds
        os.utime(path, (self._stamp, self._stamp))

    def close(self) -> None:
        for process in self._running:
            os.killpg(process, signal.SIGKILL)
        for slot in self._slots:
            shutil.rmtree(slot, ignore_errors=True)


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def tests_digest(module: str) -> str:
    files = sorted({each.partition("::")[0] for each in TESTS[module] if not each.startswith("-")})
    return digest(*((ROOT / "tests" / name).read_text() for name in files))


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def key_of(row: Mapping[str, str]) -> tuple[str, ...]:
    return row["module"], row["where"], row["before"], row["after"]


@functools.cache
def required() -> dict[str, set[str]]:
    return required_arguments(path.read_text() for path in sorted((ROOT / "jaxtrpo").rglob("*.py")))


def sample(module: str, source: str, number: int) -> list[Mutant]:
    """Draws mutants by hashes of their text: more mutants extend the sample, and edits elsewhere do not change it."""

    def rank(mutant: Mutant) -> str:
        return digest(str(SEED), module, mutant.where, mutant.before, mutant.after)

    return sorted(mutants_of(source, required()), key=rank)[:number]


def still_holds(row: Mapping[str, str], source: str, tests: str) -> bool:
    return row["source"] == source and (row["outcome"] in ("killed", "timeout", "invalid") or row["tests"] == tests)


def write_readme(folder: Path, rows: list[dict[str, str]], reasons: Mapping[tuple[str, ...], str]) -> None:
    """Writes a table of the modules, and the mutants that survived."""
    lines = ["# Mutation testing", "", f"`python experiments/mutation.py`, JAX {jax.__version__}.", ""]
    lines += ["| module | mutants | equivalent | killed | of non-equivalent |", "| --- | --- | --- | --- | --- |"]

    def counts(of: list[dict[str, str]]) -> str:
        equivalent = sum(key_of(row) in reasons for row in of)
        killed = sum(row["outcome"] != "survived" for row in of)
        count = len(of) - equivalent
        return f"{len(of)} | {equivalent} | {killed} | {100 * killed / max(count, 1):.0f} %"

    valid = [row for row in rows if row["outcome"] != "invalid"]
    for module in sorted({row["module"] for row in valid}):
        lines.append(f"| {module} | {counts([row for row in valid if row['module'] == module])} |")
    lines += [f"| **all** | {counts(valid)} |", "", "## Survivors", ""]
    for row in valid:
        if row["outcome"] == "survived":
            why = reasons.get(key_of(row))
            end = f"equivalent: {why}" if why else "**not detected**"
            lines.append(f"- {row['module']}.py:{row['line']} `{row['before']}` -> `{row['after']}`: {end}")
    (folder / "README.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"two mutants of each module, written to {QUICK}")
    parser.add_argument("--modules", nargs="+", default=sorted(TESTS), choices=sorted(TESTS), metavar="MODULE")
    parser.add_argument("--mutants", type=int, default=MUTANTS, help=f"mutants of each module (default: {MUTANTS})")
    parser.add_argument("--workers", type=int, default=1, help="test runs at a time (default: 1)")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no test run after this time")
    arguments = parser.parse_args()
    folder = QUICK if arguments.quick else RESULTS
    number = 2 if arguments.quick else arguments.mutants
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "mutants.csv"
    reasons = {key_of(row): row["reason"] for row in read(RESULTS / "equivalent.csv")}
    known = {(*key_of(row), row["nth"]): row for row in read(table)}
    kept: dict[tuple[str, ...], dict[str, Any]] = {}
    todo: dict[tuple[str, ...], Job] = {}
    rows_of: dict[tuple[str, ...], dict[str, Any]] = {}
    for module in sorted(TESTS):
        source = (ROOT / "jaxtrpo" / f"{module}.py").read_text()
        tests, seen = tests_digest(module), []
        asked = module in arguments.modules
        for mutant in sample(module, source, number if asked else 10**6):
            row = {"module": module, "line": mutant.line, "kind": mutant.kind, "where": mutant.where}
            row.update(before=mutant.before, after=mutant.after, source=digest(source), tests=tests)
            key = key_of(row)
            seen.append(key)
            row["nth"] = str(seen.count(key) - 1)  # index among equal changes in a function
            key = (*key, row["nth"])
            rows_of[key], old = row, known.get(key)
            if old is not None and still_holds(old, row["source"], tests):
                kept[key] = {**old, "line": mutant.line}
            elif asked and key_of(row) in reasons:
                kept[key] = {**row, "outcome": "survived", "by": "", "seconds": ""}
            elif asked:
                todo[key] = Job(module, mutant, source)

    def save() -> None:
        rows = [kept[key] for key in sorted(kept)]
        write_csv(table, COLUMNS, [[row[name] for name in COLUMNS] for row in rows])
        write_readme(folder, rows, reasons)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    runs = Runs(arguments.workers, WORK)
    until, unsound = time.time() + 60 * arguments.minutes, []
    try:
        for module in arguments.modules:
            jobs = {job: key for key, job in todo.items() if job.module == module}
            if not jobs:
                continue
            if not runs.pass_unchanged(module, until):
                unsound.append(module)
                continue
            for job, outcome, failed, seconds in runs.results(iter(jobs), until):
                print(
                    f"{outcome:8} {seconds:4.0f} s  {module}:{job.mutant.line}  {job.mutant.after}  {failed}",
                    flush=True,
                )
                row = rows_of[jobs[job]]
                kept[jobs[job]] = {**row, "outcome": outcome, "by": failed, "seconds": f"{seconds:.1f}"}
                save()
    finally:
        runs.close()
        save()
    if unsound:
        sys.exit(f"tests that fail without a mutant, or were not run: {', '.join(unsound)}")


if __name__ == "__main__":
    main()
