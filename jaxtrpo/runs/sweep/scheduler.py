"""The runs of a sweep: each is a process on one core."""

from __future__ import annotations

import os
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from jaxtrpo.runs.directory import hold, write_whole, writing
from jaxtrpo.runs.own_command import own_command
from jaxtrpo.runs.progress import Progress
from jaxtrpo.runs.reader import read_run
from jaxtrpo.runs.sweep.space import Dimension
from jaxtrpo.runs.sweep.study import SEEDS, Sweep, distribution_of, sampler_of
from jaxtrpo.runs.view.curves import interquartile_mean

OWNER = "owner"  # user attribute of a trial: which sweep runs it
RETRIES = "retries"  # user attribute of a trial: number of the failed one whose settings it tries again
OWNER_FILE = "owner"  # of a directory, which may be moved, and used by another machine after this one
SECONDS_BETWEEN_LOOKS = 2.0  # at the metrics of the runs in progress
ERROR_LENGTH = 2_000  # characters of the output of a failed run


class _Running(NamedTuple):
    """A trial with unfinished runs."""

    trial: optuna.Trial
    waiting: list[int]  # seeds that have not started
    values: dict[int, float]  # return_100 of finished runs, by seed


def run_sweep(sweep: Sweep, cores: int) -> int:
    """Runs the trials that are missing, on up to `cores` cores, and reports their scores to the study.

    The score of a trial is the interquartile mean over its seeds of `return_100` at the end of the run. An interrupted
    or killed sweep resumes, because its runs do; trials that failed are tried again.

    Args:
      sweep: definition of the sweep.
      cores: number of runs at a time.

    Returns:
      The number of trials that failed.

    Raises:
      KeyboardInterrupt: the sweep was interrupted; so were its runs.
    """
    total = (len(sweep.combinations) or sweep.trials) * sweep.seeds
    with Progress(total, unit="runs") as bar:
        scheduler = _Scheduler(sweep, bar.note)
        scheduler.run(cores, bar)
    return len(scheduler.failed)


class _Scheduler:
    """Distributes runs, (trial, seed), to threads, each of which waits for a process."""

    def __init__(self, sweep: Sweep, say: Callable[[str], object]):
        self.sweep, self.say, self.lock = sweep, say, threading.Lock()
        self.stopping, self.processes = False, set[subprocess.Popen]()
        self.directories = set[Path]()  # of the runs in progress
        self.owner = _owner_of(sweep.directory) if sweep.shared else ""
        self.failed: list[Mapping[str, Any]] = []  # settings of trials, in this process
        left = _left_failed(sweep.study.get_trials(deepcopy=False))
        self.to_retry = [trial for trial in left if _is_in_ranges(trial, sweep.dimensions)]
        self.open: list[_Running] = []
        for trial in self._ours():
            if self._is_superfluous(trial):  # killed before it was pruned
                sweep.study.tell(trial.number, state=TrialState.PRUNED)
            else:
                self.open.append(self._begun(trial))

    def run(self, cores: int, bar: Progress) -> None:
        """See `run_sweep`."""
        began = time.monotonic()
        with ThreadPoolExecutor(cores) as pool:
            workers = [pool.submit(self._work) for _ in range(cores)]
            try:
                left: Collection[Future[None]] = workers
                while left:
                    done, left = wait(workers, SECONDS_BETWEEN_LOOKS, FIRST_EXCEPTION)
                    for worker in done:
                        worker.result()  # the first error ends all
                    bar.update({"env_steps": self._progress(), "wall_seconds": time.monotonic() - began})
            except BaseException:
                self.stopping = True
                for process in list(self.processes):
                    process.terminate()
                raise

    def _progress(self) -> float:
        """Returns the number of runs that are done, with the fractions of those in progress."""
        with self.lock:
            done = sum(len(running.values) for running in self.open)
            directories = list(self.directories)
            failed = len(self.failed)
        ended = len(self._states(TrialState.COMPLETE)) + failed
        return ended * self.sweep.seeds + done + sum(map(fraction_done, directories))

    def _work(self) -> None:
        while (job := self._next()) is not None:
            running, seed = job
            value = self._train(running.trial, seed)
            self._done(running, seed, value)

    def _next(self) -> tuple[_Running, int] | None:
        with self.lock:
            if self.stopping:
                return None
            for running in self.open:
                if running.waiting:
                    return running, running.waiting.pop(0)
            trial = self._another()
            if trial is None:
                return None
            running = self._begun(trial)
            self.open.append(running)
            return running, running.waiting.pop(0)

    def _another(self) -> FrozenTrial | None:
        """Returns a new trial, or None if there is none left.

        Sweeps that share a study may begin the same combination at the same time, or one trial too many. A trial is
        stored together with its number, so those with the lowest numbers run and the others are pruned.
        """
        while (choice := self._next_choice()) is not None:
            trial = self._add(*choice)
            if not self._is_superfluous(trial):
                return trial
            self.sweep.study.tell(trial.number, state=TrialState.PRUNED)
        return None

    def _next_choice(self) -> tuple[dict[str, Any], int | None] | None:
        """Returns settings that have not been tried, or {} if they are to be sampled; None if none are left.

        Sampled ones that failed in an earlier process come first, with the number of the trial that failed.
        """
        begun = [trial.params for trial in self._counted()]
        if not self.sweep.combinations:
            if len(begun) + len(self.failed) >= self.sweep.trials:
                return None
            if not self.to_retry:
                return {}, None
            again = self.to_retry.pop(0)
            return dict(again.params), again.number
        left = (choice for choice in self.sweep.combinations if choice not in begun and choice not in self.failed)
        return next(((dict(choice), None) for choice in left), None)

    def _add(self, choice: dict[str, Any], retries: int | None = None) -> FrozenTrial:
        """Adds a trial that is running from the start; `retries` is the number of the failed one that it repeats.

        Optuna's queue (`enqueue_trial`) would let two processes start the same trial, because SQLite locks no rows.
        """
        kinds = {each.name: distribution_of(each) for each in self.sweep.dimensions if each.name in choice}
        about = {OWNER: self.owner, **({} if retries is None else {RETRIES: retries})}
        new = create_trial(state=TrialState.RUNNING, params=choice, distributions=kinds, user_attrs=about)
        self.sweep.study.add_trial(new)
        return max(self._ours(), key=lambda trial: trial.number)

    def _is_superfluous(self, trial: FrozenTrial) -> bool:
        """Whether trials with lower numbers leave nothing to do for this one."""
        earlier = [other for other in self._counted() if other.number < trial.number]
        if self.sweep.combinations:
            return trial.params in [other.params for other in earlier]
        retries = trial.user_attrs.get(RETRIES)
        repeated = retries is not None and any(other.user_attrs.get(RETRIES) == retries for other in earlier)
        return repeated or len(earlier) + len(self.failed) >= self.sweep.trials

    def _train(self, trial: optuna.Trial, seed: int) -> float | None:
        """Trains a run and returns its final return_100, or None if it failed."""
        out = place_of(self.sweep.directory, trial.number) / f"seed-{seed}"
        try:
            flags = self.sweep.flags(trial.params)
        except ValueError as error:  # sampled values may contradict each other
            self.say(f"trial {trial.number} failed: {error}")
            return None
        arguments = [self.sweep.env, *flags, "--seed", str(seed), "--actors", "1", "--quiet"]
        self._wait_until_free(out)
        command = [*own_command(), "train", *arguments, "--out", str(out), "--resume"]
        environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
        # In a new session: an interrupt from the terminal reaches only the sweep, which terminates its runs.
        how = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
        with subprocess.Popen(command, env=environment, start_new_session=True, **how) as process:
            self.processes.add(process)
            if self.stopping:  # since before this process could be terminated with the others
                process.terminate()
            with self.lock:
                self.directories.add(out)
            errors = process.communicate()[1]
            self.processes.discard(process)
            with self.lock:
                self.directories.discard(out)
        if process.returncode:
            if not self.stopping:
                self.say(f"trial {trial.number}, seed {seed} failed: {errors[-ERROR_LENGTH:].strip()}")
            return None
        returns = read_run(out).columns["return_100"]
        known = returns[np.isfinite(returns)]
        if not len(known):
            self.say(f"trial {trial.number}, seed {seed} has no return: no episode has ended; raise --total-steps")
            return None
        return float(known[-1])

    def _wait_until_free(self, out: Path) -> None:
        """Waits for a run that has outlived a killed sweep; its result is then used."""
        while out.exists() and not self.stopping:
            try:
                with hold(out):
                    return
            except BlockingIOError:
                time.sleep(1.0)

    def _done(self, running: _Running, seed: int, value: float | None) -> None:
        with self.lock:
            if self.stopping or running not in self.open:
                return
            if value is None:  # the other seeds of this trial are skipped
                self.open.remove(running)
                self.failed.append(running.trial.params)
                self.sweep.study.tell(running.trial, state=TrialState.FAIL)
                return
            running.values[seed] = value
            if len(running.values) < self.sweep.seeds:
                return
            self.open.remove(running)
            values = [running.values[number] for number in range(self.sweep.seeds)]
            running.trial.set_user_attr(SEEDS, values)
            score = float(interquartile_mean(np.array(values)[:, None])[0][0])
            self.sweep.study.tell(running.trial, score)
            self.say(f"trial {running.trial.number}: {score:.1f}  {format_settings(running.trial.params)}")

    def _states(self, *states: TrialState) -> list[FrozenTrial]:
        return self.sweep.study.get_trials(deepcopy=False, states=states)

    def _counted(self) -> list[FrozenTrial]:
        """Returns the trials that are done or running; those that failed are tried again by the next sweep."""
        return self._states(TrialState.COMPLETE, TrialState.RUNNING)

    def _ours(self) -> list[FrozenTrial]:
        """Returns the trials of this sweep that are running: all of them, if nobody else has the database."""
        running = self._states(TrialState.RUNNING)
        return [trial for trial in running if not self.sweep.shared or trial.user_attrs.get(OWNER) == self.owner]

    def _begun(self, found: FrozenTrial) -> _Running:
        trial = optuna.Trial(self.sweep.study, found._trial_id)
        self.sweep.study.sampler = sampler_of(self.sweep, trial.number)
        for dimension in self.sweep.dimensions:
            dimension.suggest(trial)
        return _Running(trial, list(range(self.sweep.seeds)), {})


def _left_failed(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Returns the failed trials, with the settings they had drawn, that no other trial repeats."""
    repeated = {trial.user_attrs.get(RETRIES) for trial in trials if trial.state != TrialState.PRUNED}
    return [trial for trial in trials if trial.state == TrialState.FAIL and trial.number not in repeated]


def _is_in_ranges(trial: FrozenTrial, dimensions: Sequence[Dimension]) -> bool:
    """Returns whether the settings of a trial may still be drawn: the bounds of a range may have changed."""
    kinds = {each.name: distribution_of(each) for each in dimensions if each.name in trial.params}
    try:
        create_trial(state=TrialState.FAIL, params=trial.params, distributions=kinds)
    except ValueError:
        return False
    return True


def _owner_of(directory: Path) -> str:
    """Returns the name by which a directory's sweep knows its trials in a database; the first call chooses it."""
    with writing(directory, advice=""):
        directory.mkdir(parents=True, exist_ok=True)
        if not (directory / OWNER_FILE).exists():
            write_whole(directory / OWNER_FILE, uuid.uuid4().hex.encode())
    return (directory / OWNER_FILE).read_text()


def fraction_done(directory: Path) -> float:
    """Returns how much of a run is done, between 0 and 1, from its files; 0 if they cannot be read."""
    try:
        return read_run(directory).done or 0.0
    except (OSError, ValueError):  # the run has just begun
        return 0.0


def place_of(directory: Path, trial: int) -> Path:
    """Returns the directory of a trial's runs."""
    return directory / f"trial-{trial:04d}"


def format_settings(chosen: Mapping[str, Any]) -> str:
    """Formats settings for people."""
    shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in chosen.items()}
    return ", ".join(f"{name}={value}" for name, value in shown.items())
