"""Recipes: settings tuned for one environment each, in the TOML files of `jaxtrpo/recipes`, one file per family."""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from jaxtrpo.config import USUAL_ALGORITHM, Config, make_config
from jaxtrpo.config.checks import require_number, require_seed
from jaxtrpo.config.messages import short
from jaxtrpo.config.specs import KINDS, is_built_in, require_one_value

RESULT = ("seeds", "returns")  # entries of a recipe that are not settings


class Recipe(NamedTuple):
    """Settings tuned for one environment, and the returns that they reached."""

    env: str  # as `train` takes it
    settings: Mapping[str, Any]  # of `train`; the others are defaults
    seeds: Sequence[int]  # on which it was judged, none of which it was tuned on
    returns: Sequence[float]  # of each seed's deterministic policy after training, means over 100 episodes

    @property
    def mean(self) -> float:
        """Mean return over seeds."""
        return sum(self.returns) / len(self.returns)


@functools.cache
def recipes() -> Mapping[str, Recipe]:
    """Returns all recipes by environment.

    Raises:
      ValueError: a file of recipes is malformed; one sentence that names the file and the entry.
    """
    found: dict[str, Recipe] = {}
    every = [file for file in files("jaxtrpo").joinpath("recipes").iterdir() if file.name.endswith(".toml")]
    for file in sorted(every, key=lambda file: file.name):
        for recipe in parse_recipes(file.read_text(encoding="utf-8"), file.name):
            if recipe.env in found:
                raise ValueError(f"{file.name}: there is another recipe for {recipe.env}")
            found[recipe.env] = recipe
    return found


def parse_recipes(text: str, place: str) -> Sequence[Recipe]:
    """Parses one file of recipes: a table for each environment, with settings of `train`, `seeds` and `returns`.

    Args:
      text: TOML.
      place: name of the file, for messages.

    Raises:
      ValueError: it is not TOML, or an entry has an unknown setting of `train`, a value out of bounds, two values for
        one setting, a part that is not built in, or not one return for each seed; one sentence. Settings inside spec
        strings are not checked, which would take importing JAX.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{place}: {error}") from error
    return [_recipe(env, entry, f"{place}: {env}") for env, entry in content.items()]


def load_recipe(env: str) -> dict[str, Any]:
    """Returns settings tuned for an environment: `train(**load_recipe("Swimmer-v5"))` trains with them.

    Args:
      env: environment, as `train` takes it; `jaxtrpo recipes` lists those with a recipe.

    Returns:
      Arguments of `train` by name, `env` among them.

    Raises:
      ValueError: there is no recipe for this environment.
    """
    return {"env": env, **recipe_for(env).settings}


def recipe_for(env: str) -> Recipe:
    """Returns the recipe for an environment; errors as for `load_recipe`."""
    known = recipes()
    if not isinstance(env, str):
        raise ValueError(f"recipe: env={short(env, 60)} must be a name; `jaxtrpo recipes` lists all")
    if env not in known:
        near = difflib.get_close_matches(env, known, n=3)
        hint = f"the nearest are for {', '.join(near)}" if near else "`jaxtrpo recipes` lists all"
        raise ValueError(f"recipe: there is none for {short(env, 60)}; {hint}")
    return known[env]


def mention(env: object, chosen: Mapping[str, Any]) -> str | None:
    """Returns a note about the recipe for an environment; None if there is none, or some of its settings are chosen.

    Args:
      env: environment, as `train` takes it.
      chosen: settings of `train` by name.
    """
    recipe = recipes().get(env) if isinstance(env, str) else None
    if recipe is None:
        return None
    usual = vars(Config())
    tuned = [name for name in recipe.settings if name != "total_steps"]
    if not tuned or any(chosen[name] != usual[name] for name in tuned):
        return None
    return (
        f"{env}: tuned settings reached a mean return of {recipe.mean:.4g} after {recipe.settings['total_steps']:,} "
        "steps; use them with --recipe, in Python with train(**load_recipe(...))"
    )


def _recipe(env: str, entry: Any, place: str) -> Recipe:
    if not isinstance(entry, dict):
        raise ValueError(f"{place} must be a table of settings")
    missing = [name for name in (*RESULT, "total_steps") if name not in entry]
    if missing:
        raise ValueError(f"{place} lacks {', '.join(missing)}")
    settings = {name: value for name, value in entry.items() if name not in RESULT}
    try:
        config = make_config(settings, algorithm=str(entry.get("algorithm", USUAL_ALGORITHM)))
        require_one_value(vars(config), vars(Config()))
        seeds, returns = _list(seeds=entry["seeds"]), _list(returns=entry["returns"])
        for seed in seeds:
            require_seed(seeds=seed)
        for value in returns:
            require_number("a number", lambda value: True, returns=value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{place}: {error}") from error
    for kind in KINDS:
        spec = getattr(config, kind)
        if spec is not None and not is_built_in(kind, spec):
            raise ValueError(f"{place}: {kind}={short(spec, 60)} is not built in")
    if not (seeds and len(seeds) == len(returns) == len(set(seeds))):
        raise ValueError(f"{place} needs different seeds, and one return for each of them")
    return Recipe(env, settings, tuple(seeds), tuple(map(float, returns)))


def _list(**values: Any) -> list[Any]:
    """Returns the value of an entry; raises ValueError if it is not a list."""
    ((name, value),) = values.items()
    if not isinstance(value, list):
        raise ValueError(f"{name}={short(value)} must be a list")
    return value
