"""The rules of the 2016 system: small batches and a wide trust region while returns rise, the opposite otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxtrpo.adapt.rule import Rule, require_bounds
from jaxtrpo.config.checks import plain, require_not_negative, require_positive, require_whole
from jaxtrpo.config.messages import short
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.rollout.types import Hyperparameters

MOST_STEPS = 2**30  # sums of two are within 32 bits


class _Windows(NamedTuple):
    sum: Float[Array, ""]  # of the mean returns in the current window
    count: Int[Array, ""]  # updates in the current window
    before: Float[Array, ""]  # sum of the previous window
    compared: Bool[Array, ""]  # whether there is a previous window


def improvement(
    *,
    window: int = 10,
    required: float = 0.0,
    steps_delta: int | None = 300,
    steps_bounds: tuple[int, int] = (1_200, 20_000),
    kl_delta: float | None = 0.0005,
    kl_bounds: tuple[float, float] = (0.001, 0.01),
) -> Rule:
    """Shrinks batches and widens the trust region while returns improve, else the opposite (Frans & Hafner 2016).

    Sums the mean returns of `window` updates and compares the sum with that of the previous window. If it is larger by
    more than `required` times the absolute value of the previous sum, steps per update decrease by `steps_delta` and
    max KL increases by `kl_delta`; otherwise both move the other way. Updates in which no episode finished are skipped.

    Args:
      window: number of updates in a window.
      required: improvement needed, as a fraction of the absolute value of the previous window's sum.
      steps_delta: change of steps per update, environment steps; None leaves them unchanged. Batches are rounded to
        whole segments, but the rule keeps the unrounded number.
      steps_bounds: smallest and largest steps per update.
      kl_delta: change of max KL, nats; None leaves it unchanged.
      kl_bounds: smallest and largest max KL, nats.

    Raises:
      ValueError: `required` is negative, another value is not positive, `window` or a number of steps is not an
        integer, or bounds are not in ascending order.
    """
    spec_string = spec_string_of(improvement, locals())
    require_whole(1, window=window)
    require_not_negative(required=required)
    require_bounds(steps_bounds=steps_bounds, kl_bounds=kl_bounds)
    if steps_delta is not None:  # steps are integers in compiled code and must stay integers
        require_whole(1, steps_delta=steps_delta)
    if not all(isinstance(steps, int) and steps <= MOST_STEPS for steps in plain(tuple(steps_bounds))):
        raise ValueError(f"steps_bounds={short(steps_bounds)} must be two integers of at most 2^30 (environment steps)")
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
            most = min(steps_delta, steps_bounds[1])  # more would leave the bounds, and the integers
            steps = now["steps_per_update"]
            now["steps_per_update"] = jnp.where(change == 0, steps, jnp.clip(steps - change * most, *steps_bounds))
        if kl_delta is not None:
            kl = now["max_kl"]
            now["max_kl"] = jnp.where(change == 0, kl, jnp.clip(kl + change * kl_delta, *map(float, kl_bounds)))
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
        spec_string=spec_string,
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
    """Second rule of Frans & Hafner (2016): `improvement` with a required rise of 5 % and at most 10,000 steps.

    Args:
      window: as in `improvement`.
      required: as in `improvement`.
      steps_delta: as in `improvement`.
      steps_bounds: as in `improvement`.
      kl_delta: as in `improvement`.
      kl_bounds: as in `improvement`.
    """
    rule = improvement(
        window=window,
        required=required,
        steps_delta=steps_delta,
        steps_bounds=steps_bounds,
        kl_delta=kl_delta,
        kl_bounds=kl_bounds,
    )
    return rule._replace(spec_string=spec_string_of(margin, locals()))
