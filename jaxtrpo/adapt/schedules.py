"""Schedules that move settings to given final values in the course of a run; baselines of the 2016 system."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax.numpy as jnp
from jaxtyping import Array

from jaxtrpo.adapt.rule import Rule
from jaxtrpo.config.checks import plain, require_not_negative, require_positive, require_whole
from jaxtrpo.rollout.types import Hyperparameters


def linear(*, over: int | None = None, **settings: float) -> Rule:
    """Interpolates settings linearly from their initial values to the given final ones.

    Args:
      over: environment steps until the final values are reached, after which they stay constant; the whole run if None.
      **settings: final values of any settings that the algorithm can adapt, such as `max_kl` or `learning_rate`.

    Raises:
      ValueError: `over` is not positive, a final value is negative or not a number, `steps_per_update` is not an
        integer, or no setting is given.
    """
    return _schedule(_between_linearly, "linear", over, settings)


def exponential(*, over: int | None = None, **settings: float) -> Rule:
    """Interpolates settings exponentially (linearly in their logarithm) to the given final values.

    Args:
      over: environment steps until the final values are reached, after which they stay constant; the whole run if None.
      **settings: final values, as for `linear`; they must be positive.

    Raises:
      ValueError: as for `linear`, or a final value is zero. So is training with an initial value of zero.
    """
    require_positive(**settings)
    rule = _schedule(_between_exponentially, "exponential", over, settings)
    return rule._replace(multiplies=rule.changes)


def _between_linearly(first: Array, last: float, progress: Array) -> Array:
    return first + progress * (last - first)


def _between_exponentially(first: Array, last: float, progress: Array) -> Array:
    return first * (last / first) ** progress


def _schedule(
    between: Callable[[Array, float, Array], Array], name: str, over: int | None, settings: Mapping[str, float]
) -> Rule:
    if over is not None:
        require_positive(over=over)
    if not settings:
        raise ValueError(f"{name} needs at least one setting and its final value, such as learning_rate=0.0001")
    require_not_negative(**settings)
    steps = settings.get("steps_per_update")
    if steps is not None:
        require_whole(1, steps_per_update=steps)  # an integer in compiled code that must stay an integer
    given = [f"{key}={plain(value)!r}" for key, value in {"over": over, **settings}.items() if value is not None]

    def update(
        first: Hyperparameters, hyperparameters: Hyperparameters, metrics: Mapping[str, Array]
    ) -> tuple[Hyperparameters, Hyperparameters]:
        progress = jnp.minimum(metrics["progress"] if over is None else metrics["env_steps"] / float(over), 1.0)
        now = dict(hyperparameters)
        for setting, last in settings.items():
            value = between(first[setting], last, progress)
            whole = jnp.issubdtype(now[setting].dtype, jnp.integer)
            now[setting] = jnp.round(value).astype(now[setting].dtype) if whole else value
        return first, now

    return Rule(
        init=lambda hyperparameters: hyperparameters,
        update=update,
        max_steps_per_update=None if steps is None else int(steps),
        changes=tuple(settings),
        spec_string=f"{name}({', '.join(given)})",
        replaces=tuple(settings),
    )
