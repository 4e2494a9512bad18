"""What a rule is, and those made of others or of nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from jaxtyping import Array, PyTree

from jaxtrpo.config.checks import is_number
from jaxtrpo.config.messages import short
from jaxtrpo.rollout.types import Hyperparameters


class Rule(NamedTuple):
    """A way to adapt. What it remembers is in its state, so a run can be saved and gone on with.

    `update` gets the settings as they are, so that rules can follow each other, and the metrics of one update, by the
    names of the columns of metrics.csv; returns of an update in which no episode finished are NaN. It is compiled with
    the learner: state and settings keep their shapes and dtypes. Besides the columns there are `env_steps`, the steps
    of the run that are done, `steps_left`, how many are not, and `progress`, the share that is. This one halves max KL
    where no step was found:

        def update(state, hyperparameters, metrics):
            shrink = jnp.where(metrics["accepted"], 1.0, 0.5)
            return state, {**hyperparameters, "max_kl": shrink * hyperparameters["max_kl"]}

        train("Hopper-v5", adapt=Rule(init=lambda hyperparameters: (), update=update))
    """

    init: Callable[[Hyperparameters], PyTree]
    update: Callable[[PyTree, Hyperparameters, Mapping[str, Array]], tuple[PyTree, Hyperparameters]]
    max_steps_per_update: int | None = None  # the largest batch it may ask for; none larger than the first if None
    changes: tuple[str, ...] = ()  # settings that the algorithm must have
    reads: tuple[str, ...] = ()  # columns that the algorithm must have, of those that not all do
    words: str = "custom"  # how it is written in the shell
    replaces: tuple[str, ...] = ()  # of what it changes: what it finds by itself, whatever a rule before it has found


def require_settings(rule: Rule, hyperparameters: Mapping[str, object], algorithm: str) -> None:
    """Refuses a rule for settings that an algorithm does not have.

    Raises:
      ValueError: one sentence that names the rule and the settings.
    """
    missing = [name for name in rule.changes if name not in hyperparameters]
    if missing:
        raise ValueError(
            f"adapt={rule.words}: it changes {' and '.join(missing)}, but what can change in {algorithm} is "
            f"{', '.join(hyperparameters)}"
        )


def require_columns(rule: Rule, metrics: Mapping[str, object]) -> None:
    """Refuses a rule that goes by what the algorithm does not measure.

    Raises:
      ValueError: one sentence that names the rule and the columns.
    """
    missing = [name for name in rule.reads if name not in metrics]
    if missing:
        raise ValueError(
            f"adapt={rule.words}: it goes by {' and '.join(missing)}, which this algorithm does not measure"
        )


def fixed() -> Rule:
    """Settings stay as they are."""
    return Rule(
        init=lambda hyperparameters: (),
        update=lambda state, hyperparameters, metrics: (state, hyperparameters),
        words="fixed",
    )


def chain(*rules: Rule) -> Rule:
    """One rule after the other, each on what the one before made of the settings.

    `improvement` and `margin` change what they are given. The schedules and `trust` find by themselves what their
    settings should be, and replace what a rule before them made of them: put them first, one for each setting.

    Raises:
      ValueError: two of them find what the same setting should be.
    """
    by = dict[str, Rule]()
    for rule in rules:
        for name in rule.replaces:
            if by.setdefault(name, rule) is not rule:
                raise ValueError(
                    f"{by[name].words} and {rule.words} both set {name}; a chain has one such rule for each"
                )

    def update(
        states: tuple[PyTree, ...], hyperparameters: Hyperparameters, metrics: Mapping[str, Array]
    ) -> tuple[tuple[PyTree, ...], Hyperparameters]:
        after = []
        for rule, state in zip(rules, states, strict=True):
            state, hyperparameters = rule.update(state, hyperparameters, metrics)
            after.append(state)
        return tuple(after), hyperparameters

    largest = [rule.max_steps_per_update for rule in rules if rule.max_steps_per_update is not None]
    return Rule(
        init=lambda hyperparameters: tuple(rule.init(hyperparameters) for rule in rules),
        update=update,
        max_steps_per_update=max(largest, default=None),
        changes=tuple(dict.fromkeys(name for rule in rules for name in rule.changes)),
        reads=tuple(dict.fromkeys(name for rule in rules for name in rule.reads)),
        words=f"chain({', '.join(rule.words for rule in rules)})",
        replaces=tuple(by),
    )


def require_bounds(**values: tuple[float, float]) -> None:
    """Raises ValueError for one that is not two positive numbers in order."""
    for name, pair in values.items():
        ordered = isinstance(pair, tuple) and len(pair) == 2 and all(map(is_number, pair)) and 0 < pair[0] <= pair[1]
        if not ordered:
            raise ValueError(f"{name}={short(pair)} must be two positive numbers in order")
