"""The rule interface, the rules `fixed` and `chain`, and checks that a rule suits an algorithm."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxtyping import Array, PyTree

from jaxtrpo.config.checks import is_number
from jaxtrpo.config.kinds import kinds_differ
from jaxtrpo.config.messages import LENGTH, one_line, short, type_name
from jaxtrpo.rollout.types import Hyperparameters


class Rule(NamedTuple):
    """Adapts hyperparameters after every update. All memory is in its state, so checkpoints include it.

    `update` receives its state, the current hyperparameters (as earlier rules of a chain left them) and the metrics of
    the last update, named like the columns of metrics.csv; returns are NaN if no episode finished. In addition to the
    columns there are `env_steps` (steps of the run done so far), `steps_left` and `progress` (the fraction done).
    `update` is compiled with the learner, so state and hyperparameters must keep their shapes and dtypes. This rule
    halves max KL whenever the line search fails:

        def update(state, hyperparameters, metrics):
            shrink = jnp.where(metrics["accepted"] | (metrics["gradient_norm"] == 0), 1.0, 0.5)
            return state, {**hyperparameters, "max_kl": shrink * hyperparameters["max_kl"]}

        train("Hopper-v5", adapt=Rule(init=lambda hyperparameters: (), update=update))
    """

    init: Callable[[Hyperparameters], PyTree]  # initial hyperparameters -> initial state
    # (state, hyperparameters, metrics) -> (state, hyperparameters)
    update: Callable[[PyTree, Hyperparameters, Mapping[str, Array]], tuple[PyTree, Hyperparameters]]
    max_steps_per_update: int | None = None  # largest batch the rule may request; None if never larger than the first
    changes: tuple[str, ...] = ()  # settings the algorithm must have
    reads: tuple[str, ...] = ()  # metrics the algorithm must report, apart from those that all algorithms report
    spec_string: str = "custom"  # such as "trust(gain=0.1)"
    replaces: tuple[str, ...] = ()  # settings, among `changes`, that it sets regardless of their current values
    multiplies: tuple[str, ...] = ()  # settings, among `changes`, whose initial values must be positive


def require_settings(rule: Rule, hyperparameters: Mapping[str, object], algorithm: str) -> None:
    """Checks that the algorithm has every setting that the rule changes.

    Raises:
      ValueError: a setting is missing, or is 0 and must be positive; the message names it and the rule.
    """
    missing = [name for name in rule.changes if name not in hyperparameters]
    if missing:
        raise ValueError(
            f"adapt={rule.spec_string} changes {' and '.join(missing)}, which {algorithm} does not have; its adaptable "
            f"settings are {', '.join(hyperparameters)}"
        )
    zero = [name for name in rule.multiplies if is_number(hyperparameters[name]) and not hyperparameters[name]]
    if zero:
        raise ValueError(f"adapt={rule.spec_string} multiplies {zero[0]}, which must then begin above 0; use linear")


def require_columns(rule: Rule, metrics: Mapping[str, object]) -> None:
    """Checks that the algorithm reports every metric that the rule reads.

    Raises:
      ValueError: a metric is missing; the message names it and the rule.
    """
    missing = [name for name in rule.reads if name not in metrics]
    if missing:
        raise ValueError(
            f"adapt={rule.spec_string} reads {' and '.join(missing)}, which this algorithm does not report; "
            "use adapt=fixed"
        )


def updated(
    rule: Rule, state: PyTree, hyperparameters: Hyperparameters, metrics: Mapping[str, Array]
) -> tuple[PyTree, Hyperparameters]:
    """Returns what `rule.update` returns.

    Raises:
      ValueError: the rule reads a metric or setting that the algorithm does not have, or does not return a state and
        the same settings, of the same types as it was given.
    """
    try:
        found = rule.update(state, hyperparameters, metrics)
    except KeyError as error:
        name = error.args[0] if error.args else None
        if not isinstance(name, str) or name in metrics or name in hyperparameters:
            raise
        known = list(dict.fromkeys([*hyperparameters, *metrics]))
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it reports {', '.join(metrics)}"
        raise ValueError(
            one_line(f"adapt={rule.spec_string} reads {name}, which this algorithm does not report; {hint}", LENGTH)
        ) from error
    return _checked(rule, state, hyperparameters, found)


def _checked(rule: Rule, state: PyTree, hyperparameters: Hyperparameters, found: Any) -> tuple[PyTree, Hyperparameters]:
    """Returns what a rule returned, if that is a state and the same settings, of the same types as it was given.

    Raises:
      ValueError: it is something else.
    """
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)):
        raise ValueError(f"adapt={rule.spec_string} must return a state and the settings, not {type_name(found)}")
    new_state, changed = found
    if difference := kinds_differ(state, new_state):
        before, after = difference
        raise ValueError(
            f"adapt={rule.spec_string} must return a state of the same types as that of its init, {before}, not {after}"
        )
    if set(changed) != set(hyperparameters):
        wrong = sorted(set(changed) ^ set(hyperparameters))
        raise ValueError(
            f"adapt={rule.spec_string} must return all settings that it was given and no others; {', '.join(wrong)} "
            "is missing or new"
        )
    for name, value in hyperparameters.items():
        if difference := kinds_differ(value, changed[name]):
            before, after = difference
            raise ValueError(
                f"adapt={rule.spec_string} must return {name} as {before}, as it was given, not as {after}"
            )
    return new_state, dict(changed)


def fixed() -> Rule:
    """Leaves all settings unchanged."""
    return Rule(
        init=lambda hyperparameters: (),
        update=lambda state, hyperparameters, metrics: (state, hyperparameters),
        spec_string="fixed",
    )


def chain(*rules: Rule) -> Rule:
    """Applies several rules in order, each to the settings that the previous one returned.

    `improvement`, `margin` and `model_accuracy` modify the settings they receive. The schedules and `trust` overwrite
    theirs in every update, so no other rule may change the same setting.

    Args:
      *rules: rules to apply, as in `chain(exponential(max_kl=0.001), margin(kl_delta=None))`.

    Raises:
      ValueError: an argument is not a rule, or a rule overwrites what another one changes.
    """
    for rule in rules:
        if not isinstance(rule, Rule):
            raise ValueError(f"chain takes rules, such as chain(linear(max_kl=0.001), margin()), not {short(rule, 60)}")
    by = {name: rule for rule in rules for name in rule.replaces}
    for rule in rules:
        for name in rule.changes:
            if by.get(name, rule) is not rule:
                raise ValueError(
                    f"{rule.spec_string} and {by[name].spec_string} both set {name}, the latter in every update, "
                    "whatever it was; a chain takes only one of them"
                )

    def update(
        states: tuple[PyTree, ...], hyperparameters: Hyperparameters, metrics: Mapping[str, Array]
    ) -> tuple[tuple[PyTree, ...], Hyperparameters]:
        after = []
        for rule, state in zip(rules, states, strict=True):
            found = rule.update(state, hyperparameters, metrics)
            state, hyperparameters = _checked(rule, state, hyperparameters, found)
            after.append(state)
        return tuple(after), hyperparameters

    largest = [rule.max_steps_per_update for rule in rules if rule.max_steps_per_update is not None]
    return Rule(
        init=lambda hyperparameters: tuple(rule.init(hyperparameters) for rule in rules),
        update=update,
        max_steps_per_update=max(largest, default=None),
        changes=tuple(dict.fromkeys(name for rule in rules for name in rule.changes)),
        reads=tuple(dict.fromkeys(name for rule in rules for name in rule.reads)),
        spec_string=f"chain({', '.join(rule.spec_string for rule in rules)})",
        replaces=tuple(by),
        multiplies=tuple(dict.fromkeys(name for rule in rules for name in rule.multiplies)),
    )


def require_bounds(**values: tuple[float, float]) -> None:
    """Raises ValueError unless every value is a pair of positive finite numbers in ascending order."""
    for name, pair in values.items():
        is_pair = isinstance(pair, tuple) and len(pair) == 2 and all(map(is_number, pair))
        if not (is_pair and 0 < pair[0] <= pair[1] < math.inf):
            raise ValueError(f"{name}={short(pair)} must be a tuple of two positive finite numbers in ascending order")
