"""Sweeps: Optuna chooses the settings of trials, and each run is a process on one core."""

from __future__ import annotations

import csv
import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
import sqlalchemy
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    check_distribution_compatibility,
)
from optuna.samplers import RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import DBAPIError

from jaxtrpo.runs.directory import hold, write_whole, writing
from jaxtrpo.runs.progress import Progress
from jaxtrpo.runs.reader import read_run
from jaxtrpo.runs.sweep.space import Dimension, Values
from jaxtrpo.runs.view.curves import interquartile_mean

STUDY_FILE, TABLE_FILE = "study.sqlite", "sweep.csv"
OWNER, SEEDS = "owner", "seeds"  # user attributes of a trial
TRIES = 10  # attempts to open a database
SECONDS_BETWEEN_LOOKS = 2.0  # at the metrics of the runs in progress
ERROR_LENGTH = 2_000  # characters of the output of a failed run

optuna.logging.set_verbosity(optuna.logging.WARNING)


class Sweep(NamedTuple):
    """Definition of a sweep."""

    env: str
    directory: Path
    dimensions: Sequence[Dimension]
    combinations: Sequence[Mapping[str, Any]]  # of a grid; empty if values are sampled
    trials: int  # number of trials if values are sampled
    seeds: int  # number of seeds per trial, from 0
    flags: Callable[[Mapping[str, Any]], list[str]]  # settings of a trial -> flags of `jaxtrpo train`
    study: optuna.Study


class _Running(NamedTuple):
    """A trial with unfinished runs."""

    trial: optuna.Trial
    waiting: list[int]  # seeds that have not started
    values: dict[int, float]  # return_100 of finished runs, by seed


def open_study(directory: Path, name: str, storage: str | None, *, tpe: bool, seed: int) -> optuna.Study:
    """Opens or creates the study in a database, that of the directory or one shared by several machines.

    Raises:
      ValueError: the database cannot be opened, or the directory holds a sweep of another environment.
    """
    if storage is None and (directory / STUDY_FILE).exists():
        _require_same_env(directory, name)
    url = storage or f"sqlite:///{directory / STUDY_FILE}"
    unusable = f"storage={url!r} cannot be used"
    try:
        sqlalchemy.inspect(sqlalchemy.create_engine(url)).get_table_names()
    except Exception as error:  # errors of databases and drivers of any kind
        raise ValueError(f"{unusable}: {_first_line(error)}") from error
    sampler = TPESampler(seed=seed, constant_liar=True) if tpe else RandomSampler(seed=seed)
    for left in reversed(range(TRIES)):
        try:
            return optuna.create_study(
                study_name=name, storage=url, direction="maximize", load_if_exists=True, sampler=sampler
            )
        except Exception as error:
            if not (left and isinstance(error, DBAPIError)) or "readonly" in str(error):
                raise ValueError(f"{unusable}: {_first_line(error)}") from error
            time.sleep(0.5)  # another process may be creating the tables
    raise AssertionError


def require_same_values(study: optuna.Study, dimensions: Sequence[Dimension]) -> None:
    """Rejects dimensions that a trial of the study had with other values, which Optuna does not allow.

    Raises:
      ValueError: a setting had other choices before, or a range of another kind.
    """
    swept = {dimension.name: _distribution(dimension) for dimension in dimensions}
    for trial in study.get_trials(deepcopy=False):
        for name in trial.distributions.keys() & swept.keys():
            try:
                check_distribution_compatibility(trial.distributions[name], swept[name])
            except ValueError:
                before, now = _format_range(trial.distributions[name]), _format_range(swept[name])
                raise ValueError(
                    f"{name} was swept over {before} before, not {now}; choose another directory (--out), or another "
                    "database if the sweep has one (--storage)"
                ) from None


def _distribution(dimension: Dimension) -> BaseDistribution:
    if isinstance(dimension, Values):
        return CategoricalDistribution(dimension.values)
    if dimension.whole:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _format_range(distribution: BaseDistribution) -> str:
    if isinstance(distribution, CategoricalDistribution):
        return ", ".join(map(str, distribution.choices))
    assert isinstance(distribution, (IntDistribution, FloatDistribution))
    kind = "whole numbers" if isinstance(distribution, IntDistribution) else "numbers"
    scale = " on a logarithmic scale" if distribution.log else ""
    return f"{kind} from {distribution.low} to {distribution.high}{scale}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _require_same_env(directory: Path, env: str) -> None:
    try:
        names = optuna.get_all_study_names(f"sqlite:///{directory / STUDY_FILE}")
    except Exception:  # not a study; opening it says so
        return
    if names and env not in names:
        raise ValueError(
            f"out={str(directory)!r} holds a sweep of {', '.join(names)}, not {env}; choose another directory (--out)"
        )


def run_sweep(sweep: Sweep, cores: int) -> None:
    """Runs the trials that are missing, on up to `cores` cores, and reports their scores to the study.

    The score of a trial is the interquartile mean over its seeds of `return_100` at the end of the run. An interrupted
    or killed sweep resumes, because its runs do.

    Args:
      sweep: definition of the sweep.
      cores: number of runs at a time.

    Raises:
      KeyboardInterrupt: the sweep was interrupted; so were its runs.
    """
    total = (len(sweep.combinations) or sweep.trials) * sweep.seeds
    with Progress(total, unit="runs") as bar:
        _Scheduler(sweep, bar.note).run(cores, bar)


class _Scheduler:
    """Distributes runs, (trial, seed), to threads, each of which waits for a process."""

    def __init__(self, sweep: Sweep, say: Callable[[str], object]):
        self.sweep, self.say, self.lock = sweep, say, threading.Lock()
        self.stopping, self.processes = False, set[subprocess.Popen]()
        self.directories = set[Path]()  # of the runs in progress
        self.owner = f"{socket.gethostname()}:{sweep.directory.absolute()}"
        self.open = [self._begun(optuna.Trial(sweep.study, found._trial_id)) for found in self._ours()]

    def run(self, cores: int, bar: Progress) -> None:
        """See `run_sweep`."""
        began = time.monotonic()
        with ThreadPoolExecutor(cores) as pool:
            workers = [pool.submit(self._work) for _ in range(cores)]
            try:
                while wait(workers, SECONDS_BETWEEN_LOOKS, FIRST_EXCEPTION).not_done:
                    bar.update({"env_steps": self._progress(), "wall_seconds": time.monotonic() - began})
                for worker in workers:
                    worker.result()
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
        ended = len(self._states(TrialState.COMPLETE, TrialState.FAIL))
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
            trial.set_user_attr(OWNER, self.owner)
            running = self._begun(trial)
            self.open.append(running)
            return running, running.waiting.pop(0)

    def _another(self) -> optuna.Trial | None:
        """Returns a new trial, or None if there is none left.

        Sweeps that share a study may choose the same combination at the same time. A trial is stored together with its
        number and its combination, so the trial with the lowest number runs and the others are pruned.
        """
        study, begun = self.sweep.study, (TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING)
        if not self.sweep.combinations:
            return study.ask() if len(self._states(*begun)) < self.sweep.trials else None
        while True:
            tried = [trial.params for trial in self._states(*begun)]
            left = [choice for choice in self.sweep.combinations if choice not in tried]
            if not left:
                return None
            trial = self._add(dict(left[0]))
            earlier = [other.params for other in self._states(*begun) if other.number < trial.number]
            if trial.params not in earlier:
                return trial
            study.tell(trial, state=TrialState.PRUNED)

    def _add(self, choice: dict[str, Any]) -> optuna.Trial:
        """Adds a trial of a combination that is running from the start.

        Optuna's queue (`enqueue_trial`) would let two processes start the same trial, because SQLite locks no rows.
        """
        study = self.sweep.study
        kinds = {dimension.name: _distribution(dimension) for dimension in self.sweep.dimensions}
        new = create_trial(state=TrialState.RUNNING, params=choice, distributions=kinds, user_attrs={OWNER: self.owner})
        study.add_trial(new)
        (added,) = (trial for trial in self._ours() if trial.params == choice)
        return optuna.Trial(study, added._trial_id)

    def _train(self, trial: optuna.Trial, seed: int) -> float | None:
        """Trains a run and returns its final return_100, or None if it failed."""
        out = place_of(self.sweep.directory, trial.number) / f"seed-{seed}"
        arguments = [self.sweep.env, *self.sweep.flags(trial.params), "--seed", str(seed), "--actors", "1", "--quiet"]
        self._wait_until_free(out)
        command = [sys.executable, "-m", "jaxtrpo", "train", *arguments, "--out", str(out), "--resume"]
        environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
        # In a new session: an interrupt from the terminal reaches only the sweep, which terminates its runs.
        how = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
        with subprocess.Popen(command, env=environment, **how) as process:
            self.processes.add(process)
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
        return float(known[-1]) if len(known) else None

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

    def _ours(self) -> list[FrozenTrial]:
        """Returns the trials of this sweep that have begun and have not ended."""
        return [found for found in self._states(TrialState.RUNNING) if found.user_attrs.get(OWNER) == self.owner]

    def _begun(self, trial: optuna.Trial) -> _Running:
        for dimension in self.sweep.dimensions:
            dimension.suggest(trial)
        return _Running(trial, list(range(self.sweep.seeds)), {})


def fraction_done(directory: Path) -> float:
    """Returns how much of a run is done, between 0 and 1, from its files; 0 if they cannot be read."""
    try:
        run = read_run(directory)
        return min(1.0, float(run.columns["env_steps"][-1]) / float(run.settings["total_steps"]))
    except (OSError, ValueError, KeyError, IndexError):  # the run has just begun
        return 0.0


def place_of(directory: Path, trial: int) -> Path:
    """Returns the directory of a trial's runs."""
    return directory / f"trial-{trial:04d}"


def format_settings(chosen: Mapping[str, Any]) -> str:
    """Formats settings for people."""
    shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in chosen.items()}
    return ", ".join(f"{name}={value}" for name, value in shown.items())


def ranked(study: optuna.Study) -> list[FrozenTrial]:
    """Returns the completed trials, best first."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return sorted(done, key=lambda trial: (-float(trial.value or 0.0), trial.number))


def write_table(study: optuna.Study, directory: Path) -> Path:
    """Writes sweep.csv: a row for each completed trial, best first."""
    trials = ranked(study)
    names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("trial", *names, "interquartile_mean", "seeds"))
    for trial in trials:
        values = json.dumps([round(value, 3) for value in trial.user_attrs.get(SEEDS, [])])
        table.writerow((trial.number, *(trial.params.get(name) for name in names), f"{trial.value:.6g}", values))
    with writing(directory, advice=""):
        write_whole(directory / TABLE_FILE, text.getvalue().encode())
    return directory / TABLE_FILE
