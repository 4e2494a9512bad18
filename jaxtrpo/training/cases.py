"""The trainings of `train_many`, and the arguments of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from jaxtrpo.algorithms.algorithm import Algorithm, starting_with
from jaxtrpo.config import USUAL_ALGORITHM, Config
from jaxtrpo.config.checks import plain, require_number, require_seed
from jaxtrpo.config.messages import short
from jaxtrpo.config.specs import parse, require_no_contradiction, with_argument
from jaxtrpo.training.options import Options

# Settings of the run that may be lists, besides those of the algorithm.
RUN_SETTINGS = ("max_kl", "steps_per_update", "max_steps_per_update", "discount", "num_envs", "segment_length")


class Case(NamedTuple):
    """One training of `train_many`."""

    name: str  # path of its directory, relative to `out`
    chosen: Mapping[str, float]  # values of the settings that are given as lists
    arguments: Mapping[str, Any]  # arguments of `train`


def cases_of(seeds: Iterable[int], arguments: Mapping[str, Any]) -> list[Case]:
    """Combines every seed with every combination of the settings that are given as lists; seeds vary fastest.

    Raises:
      ValueError: a setting that must not be a list is one, or a value is invalid.
    """
    if not isinstance(seeds, Iterable) or isinstance(seeds, str):
        raise ValueError(f"seeds={short(seeds)} must be a sequence of seeds, such as range(3)")
    seeds, arguments = [plain(seed) for seed in seeds], {name: plain(value) for name, value in arguments.items()}
    if "seed" in arguments:
        raise ValueError(f"seed={arguments['seed']}: train_many takes seeds, such as seeds=[{arguments['seed']}]")
    if not seeds:
        raise ValueError("seeds: give at least one")
    for seed in seeds:
        require_seed(seed=seed)
    lists = {name: [plain(each) for each in value] for name, value in arguments.items() if _is_list(value)}
    for name, values in lists.items():
        _require_list_of_numbers(name, values)
    common = {name: value for name, value in arguments.items() if name not in lists}
    found = []
    for values in itertools.product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        settings = _with_values(common, chosen)
        parts = [f"{name}={_shown(value)}" for name, value in chosen.items()]
        found += [Case("/".join([*parts, f"seed-{seed}"]), chosen, {**settings, "seed": seed}) for seed in seeds]
    names = [case.name for case in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"seeds, {', '.join(lists) or 'settings'}: {twice[0]} occurs twice; list each value once")
    return found


def _is_list(value: Any) -> bool:
    """Returns whether an argument lists several values; arrays of NumPy or JAX do."""
    # Exact types, because an algorithm is a tuple, too.
    return type(value) in (list, tuple, range) or getattr(value, "ndim", 0) > 0


def _shown(value: float) -> str:
    """Formats a number for the name of a directory: as briefly as it can be told from others."""
    return brief if float(brief := f"{value:g}") == value else repr(value)


def _require_list_of_numbers(name: str, values: list[Any]) -> None:
    if name not in RUN_SETTINGS and name in (*Config.__dataclass_fields__, *Options._fields):
        raise ValueError(
            f"{name}={short(values)} must be a single value; only seeds, {', '.join(RUN_SETTINGS)} and numbers of the "
            "algorithm may be lists"
        )
    if not values:
        raise ValueError(f"{name}=[]: give at least one value")
    for value in values:
        require_number("a number", lambda value: True, **{name: value})


def _with_values(common: Mapping[str, Any], chosen: Mapping[str, float]) -> dict[str, Any]:
    """Returns the arguments of one training, without its seed.

    Values for an algorithm are written into its spec string, so that `train` builds the same algorithm from it. An
    algorithm given as a value is already built: only its traced settings can get other initial values.
    """
    settings = dict(common)
    if chosen:  # otherwise the default might differ between trainings that are to be compared
        settings["algorithm"] = settings.get("algorithm") or USUAL_ALGORITHM
    for name, value in chosen.items():
        given = settings["algorithm"]
        if name in RUN_SETTINGS:
            settings[name] = value
        elif isinstance(given, str):
            require_no_contradiction("algorithm", given, name, value)
            settings["algorithm"] = with_argument(given, name, value)
            parse("algorithm", settings["algorithm"])
        elif isinstance(given, Algorithm):
            settings["algorithm"] = _with_initial_value(given, name, value)
    return settings


def _with_initial_value(algorithm: Algorithm, name: str, value: float) -> Algorithm:
    spec = algorithm.spec_string
    if name not in algorithm.hyperparameters:
        raise ValueError(
            f"{name}={value}: for an algorithm given as a value, only {', '.join(algorithm.hyperparameters)} may be "
            f"lists; use its spec string, algorithm={spec!r}"
        )
    require_no_contradiction("algorithm", spec, name, value)
    changed = starting_with(algorithm, **{name: value})
    try:
        return changed._replace(spec_string=with_argument(spec, name, value))
    except SyntaxError:  # the user's own algorithm, whose name need not be a spec string
        return changed._replace(spec_string=f"{spec}, {name}={value}")
