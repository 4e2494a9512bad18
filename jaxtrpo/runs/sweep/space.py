"""The search space of a sweep."""

from __future__ import annotations

import ast
import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxtrpo.config import USUAL_ALGORITHM, Config
from jaxtrpo.config.checks import is_number
from jaxtrpo.config.specs import with_argument

COLLECTIONS = (tuple, list, set, dict)
PARTS = ("algorithm", "policy", "critic", "adapt")
FORMS = ("log(NAME, LOW, HIGH)", "uniform(NAME, LOW, HIGH)", "integer(NAME, LOW, HIGH)", "choice(NAME, VALUE, ...)")


class Values(NamedTuple):
    """A setting with a finite set of values."""

    name: str
    values: tuple[Any, ...]

    @property
    def examples(self) -> tuple[Any, ...]:
        """Values to validate before the sweep starts."""
        return self.values

    def suggest(self, trial: Any) -> Any:
        """Lets an Optuna trial choose a value."""
        return trial.suggest_categorical(self.name, self.values)


class Interval(NamedTuple):
    """A setting between two bounds, inclusive."""

    name: str
    low: float
    high: float
    log: bool = False
    whole: bool = False

    @property
    def examples(self) -> tuple[Any, ...]:
        """See `Values.examples`; a number between the bounds is no whole one by chance, as they may be."""
        return (self.low, self.high) if self.whole else (self.low, self.low + (self.high - self.low) / 3.7, self.high)

    def suggest(self, trial: Any) -> Any:
        """See `Values.suggest`."""
        suggest = trial.suggest_int if self.whole else trial.suggest_float
        return suggest(self.name, self.low, self.high, log=self.log)


Dimension = Values | Interval


def parse_grid(arguments: Sequence[str]) -> list[Dimension]:
    """Parses arguments of --grid, such as `max_kl=0.005,0.01`.

    Raises:
      ValueError: an argument is malformed; one sentence that quotes it.
    """
    found: list[Dimension] = []
    for text in arguments:
        name, equals, values = text.partition("=")
        if not (name.strip().isidentifier() and equals and values.strip()):
            raise ValueError(f"grid={text!r} must have the form NAME=VALUE,VALUE, such as max_kl=0.005,0.01")
        # Parsed as Python, because a comma inside brackets does not separate values.
        parsed = [_literal(node) for node in _elements(values, f"grid={text!r}")]
        found.append(Values(name.strip(), tuple(parsed)))
    return found


def parse_random(arguments: Sequence[str]) -> list[Dimension]:
    """Parses arguments of --random, such as `log(critic_learning_rate, 1e-4, 1e-2)`.

    Raises:
      ValueError: an argument is malformed; one sentence that quotes it.
    """
    return [_random(text) for text in arguments]


def _random(text: str) -> Dimension:
    error = ValueError(f"random={text!r} must be one of {', '.join(FORMS)}")
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise error from None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.args and not call.keywords):
        raise error
    first, *others = call.args
    if not isinstance(first, ast.Name):
        raise error
    values, kind = [_literal(node) for node in others], call.func.id
    if kind == "choice" and values:
        return Values(first.id, tuple(values))
    if kind not in ("log", "uniform", "integer") or len(values) != 2 or not all(map(is_number, values)):
        raise error
    low, high = values
    if not low < high or (kind == "log" and low <= 0) or (kind == "integer" and {type(low), type(high)} != {int}):
        raise ValueError(f"random={text!r}: {low} and {high} are not valid bounds of {kind}")
    if kind == "integer":
        return Interval(first.id, low, high, whole=True)
    return Interval(first.id, float(low), float(high), log=kind == "log")


def _elements(text: str, what: str) -> list[ast.expr]:
    try:
        body = ast.parse(f"[{text}]", mode="eval").body
    except SyntaxError:
        body = None
    if not isinstance(body, ast.List):
        raise ValueError(f"{what} cannot be parsed; put values with special characters in quotes")
    return body.elts


def _literal(node: ast.expr) -> Any:
    """Returns a number, string, bool or None, and the source text of anything else, such as a spec string or a tuple.

    The database of a study holds only simple values: a tuple would come back as a list, a combination never tried.
    """
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
    return ast.unparse(node) if isinstance(value, COLLECTIONS) else value


def _collection(value: Any) -> Any:
    """Returns the tuple or list that a text is the source of, and any other value as it is."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError, SyntaxError):
            read = ast.literal_eval(value)
            return read if isinstance(read, COLLECTIONS) else value
    return value


ONE_ACTOR = "every run of a sweep has one actor, and --cores run at the same time"


def require_different(dimensions: Sequence[Dimension]) -> None:
    """Raises ValueError if there is no setting, a setting occurs twice, or the seed is swept."""
    names = [each.name for each in dimensions]
    if not names:
        raise ValueError("grid, random: give at least one setting to sweep")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is swept twice")
        if name == "actors":
            raise ValueError(f"actors cannot be swept: {ONE_ACTOR}")
        if name == "seed":
            raise ValueError("seed cannot be swept; use --seeds 5 to run each trial with 5 seeds")


def combinations(dimensions: Sequence[Values]) -> Iterator[dict[str, Any]]:
    """Yields all combinations of values."""
    for chosen in itertools.product(*(each.values for each in dimensions)):
        yield {each.name: value for each, value in zip(dimensions, chosen, strict=True)}


def with_settings(config: Mapping[str, Any], chosen: Mapping[str, Any], default_spec: Callable[[str], str]) -> dict:
    """Returns the settings of a trial.

    Args:
      config: settings shared by all trials.
      chosen: values by name; a name is a setting, or a setting within a spec string such as `critic_learning_rate`.
      default_spec: (policy, critic or adapt) -> spec string to use if `config` has None.

    Raises:
      ValueError: a setting is unknown, or `config` sets it to another value.
    """
    from jaxtrpo.config.aliases import swept_name
    from jaxtrpo.config.specs import require_no_contradiction, require_one_value

    settings, usual = dict(config), vars(Config())
    # Whole spec strings first, so that none overwrites a setting within it.
    for name, value in sorted(chosen.items(), key=lambda choice: choice[0] not in settings):
        part, _, inner = name.partition("_")
        if name in settings:
            if config[name] not in (usual[name], value):
                raise ValueError(f"{name}={config[name]} contradicts the swept {name}={value}; give only one of them")
            settings[name] = value
        elif part in PARTS and inner:
            value = _collection(value)
            require_no_contradiction(part, settings[part] or "", inner, value)
            spec = settings[part] or (USUAL_ALGORITHM if part == "algorithm" else default_spec(part))
            settings[part] = with_argument(spec, inner, value)
        else:
            near = swept_name(name, settings["algorithm"] or USUAL_ALGORITHM)
            hint = f"did you mean {near}?" if near else "settings of a spec string look like critic_learning_rate"
            raise ValueError(f"unknown setting {name!r}; {hint}")
    require_one_value(settings, usual)
    return settings
