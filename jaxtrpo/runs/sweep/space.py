"""What a sweep tries: settings and the values that they may have."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxtrpo.config import Config
from jaxtrpo.config.checks import is_number
from jaxtrpo.config.specs import with_argument

PARTS = ("algorithm", "policy", "critic", "adapt")
FORMS = ("log(NAME, LOW, HIGH)", "uniform(NAME, LOW, HIGH)", "integer(NAME, LOW, HIGH)", "choice(NAME, VALUE, ...)")


class Values(NamedTuple):
    """A setting that is one of several values."""

    name: str
    values: tuple[Any, ...]

    @property
    def ends(self) -> tuple[Any, ...]:
        """Values to check before anything is tried."""
        return self.values

    def suggest(self, trial: Any) -> Any:
        """Lets an Optuna trial choose."""
        return trial.suggest_categorical(self.name, self.values)


class Interval(NamedTuple):
    """A setting between two numbers."""

    name: str
    low: float
    high: float
    log: bool = False
    whole: bool = False

    @property
    def ends(self) -> tuple[Any, ...]:
        """As `Values.ends`."""
        return self.low, self.high

    def suggest(self, trial: Any) -> Any:
        """As `Values.suggest`."""
        suggest = trial.suggest_int if self.whole else trial.suggest_float
        return suggest(self.name, self.low, self.high, log=self.log)


Dimension = Values | Interval


def parse_grid(words: Sequence[str]) -> list[Dimension]:
    """Of `max_kl=0.005,0.01`.

    Raises:
      ValueError: one sentence that names the words.
    """
    found: list[Dimension] = []
    for text in words:
        name, equals, values = text.partition("=")
        if not (name.strip().isidentifier() and equals and values.strip()):
            raise ValueError(f"grid={text!r} is not like max_kl=0.005,0.01")
        # Commas inside brackets belong to a value.
        parsed = [_literal(node) for node in _elements(values, f"grid={text!r}")]
        found.append(Values(name.strip(), tuple(parsed)))
    return found


def parse_random(words: Sequence[str]) -> list[Dimension]:
    """Of `log(critic_learning_rate, 1e-4, 1e-2)`.

    Raises:
      ValueError: one sentence that names the words.
    """
    return [_random(text) for text in words]


def _random(text: str) -> Dimension:
    error = ValueError(f"random={text!r} is not like {', '.join(FORMS)}")
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
        raise ValueError(f"random={text!r}: {low} and {high} are no bounds of {kind}")
    if kind == "integer":
        return Interval(first.id, low, high, whole=True)
    return Interval(first.id, float(low), float(high), log=kind == "log")


def _elements(text: str, what: str) -> list[ast.expr]:
    try:
        body = ast.parse(f"[{text}]", mode="eval").body
    except SyntaxError:
        raise ValueError(f"{what} cannot be read: words with anything but letters need quotes") from None
    assert isinstance(body, ast.List)
    return body.elts


def _literal(node: ast.expr) -> Any:
    """Numbers, truth values, None and tuples are what they are in Python; anything else is words."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def require_different(dimensions: Sequence[Dimension]) -> None:
    """Raises ValueError if there is no setting, one twice, or the seed, which is not tuned."""
    names = [each.name for each in dimensions]
    if not names:
        raise ValueError("grid, random: give at least one setting to try")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is tried twice")
        if name == "seed":
            raise ValueError("seed is no setting that is tuned; --seeds says how many every trial has")


def combinations(dimensions: Sequence[Values]) -> Iterator[dict[str, Any]]:
    """Every combination of values."""
    for chosen in itertools.product(*(each.values for each in dimensions)):
        yield {each.name: value for each, value in zip(dimensions, chosen, strict=True)}


def with_settings(config: Mapping[str, Any], chosen: Mapping[str, Any], default_words: Callable[[str], str]) -> dict:
    """Settings of a trial.

    Args:
      config: settings that all trials have.
      chosen: names of settings, or of settings of a part such as `critic_learning_rate`, and their values.
      default_words: part -> what it is where `config` does not say.

    Raises:
      ValueError: there is no such setting, or `config` has another value of it.
    """
    from jaxtrpo.config.specs import require_not_said, require_one_value

    settings, usual = dict(config), vars(Config())
    # Whole parts first, so that none replaces one of which a setting has been chosen.
    for name, value in sorted(chosen.items(), key=lambda choice: choice[0] not in settings):
        part, _, inner = name.partition("_")
        if name in settings:
            if config[name] not in (usual[name], value):
                raise ValueError(f"{name}={config[name]} and {name}={value}, which is tried, contradict each other")
            settings[name] = value
        elif part in PARTS and inner:
            require_not_said(part, settings[part] or "", inner, value)
            settings[part] = with_argument(settings[part] or default_words(part), inner, value)
        else:
            raise ValueError(f"there is no setting {name!r}; those of a part are like critic_learning_rate")
    require_one_value(settings, usual)
    return settings
