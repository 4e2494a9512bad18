"""The study of a sweep: the database that Optuna keeps of its trials."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
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
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import ArgumentError, DBAPIError

from jaxtrpo.runs.directory import write_whole, writing
from jaxtrpo.runs.sweep.space import Dimension, Values

STUDY_FILE, TABLE_FILE = "study.sqlite", "sweep.csv"
SEEDS = "seeds"  # user attribute of a trial: return_100 of each
FIXED = "fixed"  # user attribute of a study: what its trials have in common
ELSEWHERE = "choose another directory (--out), or another database if the sweep has one (--storage)"
TRIES = 10  # attempts to open a database

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
    shared: bool = False  # whether other sweeps use the database, too
    tpe: bool = False  # whether values are sampled where earlier trials did well
    seed: int = 0  # of the sampled values


def open_study(directory: Path, name: str, storage: str | None) -> optuna.Study:
    """Opens or creates the study in a database, that of the directory or one shared by several machines.

    Raises:
      ValueError: the database cannot be opened, or the directory holds a sweep of another environment.
    """
    if storage is None and (directory / STUDY_FILE).exists():
        _require_same_env(directory, name)
    url = storage or _url_of(directory)
    unusable = f"storage={_without_password(url)!r} cannot be used"
    try:
        sqlalchemy.inspect(sqlalchemy.create_engine(url)).get_table_names()
    except Exception as error:  # errors of databases and drivers of any kind
        raise ValueError(f"{unusable}: {_first_line(error)}") from error
    for left in reversed(range(TRIES)):
        try:
            return optuna.create_study(study_name=name, storage=url, direction="maximize", load_if_exists=True)
        except Exception as error:
            if not (left and isinstance(error, DBAPIError)) or "readonly" in str(error):
                raise ValueError(f"{unusable}: {_first_line(error)}") from error
            time.sleep(0.5)  # another process may be creating the tables
    raise AssertionError


def _without_password(url: str) -> str:
    try:
        return sqlalchemy.make_url(url).render_as_string(hide_password=True)
    except ArgumentError:  # no URL, and so no password
        return url


def require_same_sweep(study: optuna.Study, dimensions: Sequence[Dimension], flags: str, seeds: int) -> None:
    """Checks that trials of a study can be compared with those of a sweep; records what a new study is for.

    Args:
      study: the study.
      dimensions: search space of the sweep. Optuna lets the bounds of a range change, but not the values of a setting.
      flags: flags of `jaxtrpo train` that all trials have in common.
      seeds: number of seeds per trial.

    Raises:
      ValueError: the trials differ in other settings, or in more; one sentence.
    """
    swept = {dimension.name: distribution_of(dimension) for dimension in dimensions}
    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.params]
    for trial in trials:
        complete = trial.state == TrialState.COMPLETE  # the others may have been stopped between two settings
        if trial.params.keys() - swept.keys() or (complete and swept.keys() - trial.params.keys()):
            raise ValueError(
                f"the sweep was over {', '.join(trial.params)} before, not {', '.join(swept)}; {ELSEWHERE}"
            )
        for name, before in trial.distributions.items():
            try:
                check_distribution_compatibility(before, swept[name])
            except ValueError:
                then, now = _format_range(before), _format_range(swept[name])
                raise ValueError(f"{name} was swept over {then} before, not {now}; {ELSEWHERE}") from None
    fixed = study.user_attrs.get(FIXED) if trials else None
    if fixed is None:  # a new study, or one of an earlier version
        study.set_user_attr(FIXED, {"flags": flags, "seeds": seeds})
        return
    if fixed["flags"] != flags:
        before, after = (f"`{text}`" if text else "the default settings" for text in (fixed["flags"], flags))
        raise ValueError(f"the trials of this sweep have {before}, not {after}; {ELSEWHERE}")
    if fixed["seeds"] != seeds:
        raise ValueError(f"seeds={seeds}: the trials of this sweep have {fixed['seeds']} each; {ELSEWHERE}")


def distribution_of(dimension: Dimension) -> BaseDistribution:
    """Returns what Optuna draws the values of a setting from."""
    if isinstance(dimension, Values):
        return CategoricalDistribution(dimension.values)
    if dimension.whole:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def sampler_of(sweep: Sweep, trial: int) -> BaseSampler:
    """Returns what draws the values of a trial.

    Each trial has random numbers of its own, so that a resumed sweep does not draw what it has drawn before, nor one
    sweep what another has that shares the study.
    """
    seed = int(np.random.SeedSequence((sweep.seed, trial)).generate_state(1)[0])
    return TPESampler(seed=seed, constant_liar=True) if sweep.tpe else RandomSampler(seed=seed)


def _format_range(distribution: BaseDistribution) -> str:
    if isinstance(distribution, CategoricalDistribution):
        return ", ".join(map(str, distribution.choices))
    assert isinstance(distribution, (IntDistribution, FloatDistribution))
    kind = "whole numbers" if isinstance(distribution, IntDistribution) else "numbers"
    scale = " on a logarithmic scale" if distribution.log else ""
    return f"{kind} from {distribution.low} to {distribution.high}{scale}"


def _url_of(directory: Path) -> str:
    # Quoted by SQLAlchemy, because ? and % have a meaning in URLs.
    return sqlalchemy.URL.create("sqlite", database=str(directory / STUDY_FILE)).render_as_string()


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _require_same_env(directory: Path, env: str) -> None:
    try:
        names = optuna.get_all_study_names(_url_of(directory))
    except Exception:  # not a study; opening it says so
        return
    if names and env not in names:
        raise ValueError(
            f"out={str(directory)!r} holds a sweep of {', '.join(names)}, not {env}; choose another directory (--out)"
        )


def ranked(study: optuna.Study) -> list[FrozenTrial]:
    """Returns the completed trials, best first."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return sorted(done, key=lambda trial: (-float(trial.value or 0.0), trial.number))


def unfinished(study: optuna.Study) -> int:
    """Returns the number of trials that are running, as far as the database knows."""
    return len(study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))


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
