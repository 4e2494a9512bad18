"""The rule of the 2016 system: bold while returns rise, careful while they do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxtrpo.adapt.rule import Rule, require_bounds
from jaxtrpo.config.checks import require_not_negative, require_positive, require_whole
from jaxtrpo.config.messages import short
from jaxtrpo.config.specs import call_in_words
from jaxtrpo.rollout.types import Hyperparameters


class _Windows(NamedTuple):
    sum: Float[Array, ""]  # of the mean returns of this window
    count: Int[Array, ""]  # of updates in it
    before: Float[Array, ""]  # the sum of the window before
    compared: Bool[Array, ""]  # whether there was one


def improvement(
    *,
    window: int = 10,
    required: float = 0.0,
    steps_delta: int | None = 300,
    steps_bounds: tuple[int, int] = (1_200, 20_000),
    kl_delta: float | None = 0.0005,
    kl_bounds: tuple[float, float] = (0.001, 0.01),
) -> Rule:
    """The rule of Frans and Hafner (2016): bold while it goes well, careful while it does not.

    The mean returns of `window` updates are summed. Where the sum exceeds that of the window before by more than
    `required` of its size, steps per update go down and max KL goes up, by a constant each; otherwise the other way.
    Updates in which no episode finished do not count.

    Args:
      window: updates.
      required: part of |sum before|.
      steps_delta: change of steps per update; they are left alone if None. Batches change in whole segments, but the
        rule goes on from the exact number.
      steps_bounds: smallest and largest steps per update.
      kl_delta: change of max KL, nats; left alone if None.
      kl_bounds: smallest and largest max KL, nats.

    Raises:
      ValueError: a value is not positive, updates or steps are not a whole number, or the bounds are not in order.
    """
    words = call_in_words(improvement, locals())
    require_whole(1, window=window)
    require_not_negative(required=required)
    require_bounds(steps_bounds=steps_bounds, kl_bounds=kl_bounds)
    if steps_delta is not None:  # steps are integers in compiled code, and have to stay so
        require_whole(1, steps_delta=steps_delta)
    if not all(isinstance(steps, int) for steps in steps_bounds):
        raise ValueError(f"steps_bounds={short(steps_bounds)} must be whole numbers of steps")
    if kl_delta is not None:
        require_positive(kl_delta=kl_delta)

    def init(hyperparameters: Hyperparameters) -> _Windows:
        return _Windows(jnp.float32(0), jnp.int32(0), jnp.float32(0), jnp.bool_(False))

    def update(
        state: _Windows, hyperparameters: Hyperparameters, metrics: Mapping[str, Array]
    ) -> tuple[_Windows, Hyperparameters]:
        seen = jnp.isfinite(metrics["mean_return"])
        total = state.sum + jnp.where(seen, metrics["mean_return"], 0.0)
        count = state.count + seen
        full = count >= window
        better = total > state.before + required * jnp.abs(state.before)
        change = jnp.where(full & state.compared, jnp.where(better, 1, -1), 0)
        now = dict(hyperparameters)
        if steps_delta is not None:
            steps = now["steps_per_update"]
            now["steps_per_update"] = jnp.where(
                change == 0, steps, jnp.clip(steps - change * steps_delta, *steps_bounds)
            )
        if kl_delta is not None:
            kl = now["max_kl"]
            now["max_kl"] = jnp.where(change == 0, kl, jnp.clip(kl + change * kl_delta, *kl_bounds))
        state = _Windows(
            sum=jnp.where(full, 0.0, total),
            count=jnp.where(full, 0, count),
            before=jnp.where(full, total, state.before),
            compared=state.compared | full,
        )
        return state, now

    changes = {"steps_per_update": steps_delta, "max_kl": kl_delta}
    return Rule(
        init,
        update,
        max_steps_per_update=None if steps_delta is None else steps_bounds[1],
        changes=tuple(name for name, delta in changes.items() if delta is not None),
        words=words,
    )


def margin(
    *,
    window: int = 10,
    required: float = 0.05,
    steps_delta: int | None = 300,
    steps_bounds: tuple[int, int] = (1_200, 10_000),
    kl_delta: float | None = 0.0005,
    kl_bounds: tuple[float, float] = (0.001, 0.01),
) -> Rule:
    """`improvement` as published in its second form: 5 % are required, and batches stay below 10,000 steps."""
    rule = improvement(
        window=window,
        required=required,
        steps_delta=steps_delta,
        steps_bounds=steps_bounds,
        kl_delta=kl_delta,
        kl_bounds=kl_bounds,
    )
    return rule._replace(words=call_in_words(margin, locals()))
