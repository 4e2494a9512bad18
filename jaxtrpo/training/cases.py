"""The trainings of `train_many`: which there are, and what each is given."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxtrpo.algorithms.algorithm import Algorithm, starting_with
from jaxtrpo.config import Config
from jaxtrpo.config.checks import require_number, require_whole
from jaxtrpo.config.specs import parse, require_no_contradiction, with_argument
from jaxtrpo.training.prepare import Options

# Settings of the run that may be lists.
OF_THE_RUN = ("max_kl", "steps_per_update", "max_steps_per_update", "discount", "num_envs", "segment_length")


class Case(NamedTuple):
    """One of the trainings."""

    name: str  # path below `out`
    chosen: Mapping[str, float]  # its values of the settings that are given as lists
    arguments: Mapping[str, Any]  # of `train`


def cases_of(seeds: Iterable[int], arguments: Mapping[str, Any]) -> list[Case]:
    """Every seed with every combination of the settings that are given as lists, seeds innermost.

    Raises:
      ValueError: a list where there may be none, or a value that is not possible.
    """
    seeds = [seed.item() if isinstance(seed, np.generic) else seed for seed in seeds]
    if "seed" in arguments:
        raise ValueError(f"seed={arguments['seed']}: train_many takes seeds, such as seeds=[{arguments['seed']}]")
    if not seeds:
        raise ValueError("seeds: give at least one")
    for seed in seeds:
        require_whole(0, seed=seed)
    several = (list, tuple, range, np.ndarray)  # an algorithm is a tuple too, of its own type
    lists = {
        name: [each.item() if isinstance(each, np.generic) else each for each in value]
        for name, value in arguments.items()
        if type(value) in several
    }
    for name, values in lists.items():
        _require_list_of_numbers(name, values)
    common = {name: value for name, value in arguments.items() if name not in lists}
    found = []
    for values in itertools.product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        settings = _with_chosen(common, chosen)
        parts = [f"{name}={value:g}" for name, value in chosen.items()]
        found += [Case("/".join([*parts, f"seed-{seed}"]), chosen, {**settings, "seed": seed}) for seed in seeds]
    names = [case.name for case in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"seeds, {', '.join(lists) or 'settings'}: {twice[0]} is there twice")
    return found


def _require_list_of_numbers(name: str, values: list[Any]) -> None:
    if name not in OF_THE_RUN and name in (*Config.__dataclass_fields__, *Options._fields):
        raise ValueError(
            f"{name}={values}: one call has one {name}; lists may be seeds, {', '.join(OF_THE_RUN)}, and what the "
            "algorithm takes, such as gae_lambda"
        )
    if not values:
        raise ValueError(f"{name}=[]: give at least one value")
    for value in values:
        require_number("a number", lambda value: True, **{name: value})


def _with_chosen(common: Mapping[str, Any], chosen: Mapping[str, float]) -> dict[str, Any]:
    """Arguments of one of the trainings, but its seed.

    The algorithm is made anew of words that say the value, so that this is what `train` makes of them. One that is
    given as a value is made already: only what it has as data can start elsewhere.
    """
    settings = dict(common)
    for name, value in chosen.items():
        given = settings.get("algorithm", Config.algorithm)
        if name in OF_THE_RUN:
            settings[name] = value
        elif isinstance(given, str):
            require_no_contradiction("algorithm", given, name, value)
            settings["algorithm"] = with_argument(given, name, value)
            parse("algorithm", settings["algorithm"])
        elif isinstance(given, Algorithm):
            settings["algorithm"] = _starting_with(given, name, value)
    return settings


def _starting_with(algorithm: Algorithm, name: str, value: float) -> Algorithm:
    words = algorithm.spec_string
    if name not in algorithm.hyperparameters:
        raise ValueError(
            f"{name}={value}: an algorithm that is given as a value may have lists of "
            f"{', '.join(algorithm.hyperparameters)} alone; give its words, such as algorithm={words!r}"
        )
    require_no_contradiction("algorithm", words, name, value)
    changed = starting_with(algorithm, **{name: value})
    try:
        return changed._replace(spec_string=with_argument(words, name, value))
    except SyntaxError:  # words of a person's own, such as a name of two words
        return changed._replace(spec_string=f"{words}, {name}={value}")
