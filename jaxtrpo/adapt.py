"""Rules that change hyperparameters between updates: pure functions of metrics, traced with the learner."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxtrpo.ops.running_mean import RunningMean, no_mean, take_in
from jaxtrpo.types import Hyperparameters


class Rule(NamedTuple):
    """A way to adapt. What it remembers is in its state, so a run can be saved and gone on with.

    `update` gets the settings as they are, so that rules can follow each other, and the metrics of one update, by the
    names of the columns of metrics.csv; returns of an update in which no episode finished are NaN. It is compiled with
    the learner: state and settings keep their shapes and dtypes. This one halves max KL where no step
    was found:

        def update(state, hyperparameters, metrics):
            shrink = jnp.where(metrics["accepted"], 1.0, 0.5)
            return state, hyperparameters._replace(max_kl=shrink * hyperparameters.max_kl)

        train("Hopper-v5", adapt=Rule(init=lambda hyperparameters: (), update=update))
    """

    init: Callable[[Hyperparameters], PyTree]
    update: Callable[[PyTree, Hyperparameters, Mapping[str, Array]], tuple[PyTree, Hyperparameters]]
    max_steps_per_update: int | None = None  # the largest batch it may ask for; none larger than the first if None


def fixed() -> Rule:
    """Settings stay as they are."""
    return Rule(
        init=lambda hyperparameters: (), update=lambda state, hyperparameters, metrics: (state, hyperparameters)
    )


def chain(*rules: Rule) -> Rule:
    """One rule after the other, each on what the one before made of the settings.

    `improvement` and `margin` change what they are given. The schedules and `trust` find by themselves what their
    settings should be, and replace what a rule before them made of them: put them first, one for each setting.
    """

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
    )


class _Schedule(NamedTuple):
    first: Hyperparameters
    env_steps: Int[Array, ""]


def linear(*, over: int, max_kl: float | None = None, steps_per_update: int | None = None) -> Rule:
    """Settings move to other values in a straight line; a baseline of the 2016 system.

    Args:
      over: environment steps until the values given here are reached; they stay so.
      max_kl: at the end, nats; not changed if not given.
      steps_per_update: at the end; not changed if not given.

    Raises:
      ValueError: a value is not positive, or steps are not a whole number.
    """
    return _schedule(lambda first, last, progress: first + progress * (last - first), over, max_kl, steps_per_update)


def exponential(*, over: int, max_kl: float | None = None, steps_per_update: int | None = None) -> Rule:
    """As `linear`, but by the same factor in equal stretches."""
    return _schedule(lambda first, last, progress: first * (last / first) ** progress, over, max_kl, steps_per_update)


def _schedule(
    between: Callable[[Array, float, Array], Array], over: int, max_kl: float | None, steps_per_update: int | None
) -> Rule:
    _require_positive(over=over, max_kl=max_kl, steps_per_update=steps_per_update)
    _require_whole(steps_per_update=steps_per_update)

    def update(
        state: _Schedule, hyperparameters: Hyperparameters, metrics: Mapping[str, Array]
    ) -> tuple[_Schedule, Hyperparameters]:
        env_steps = state.env_steps + metrics["steps_per_update"].astype(jnp.int32)
        progress = jnp.minimum(env_steps / over, 1.0)
        if max_kl is not None:
            hyperparameters = hyperparameters._replace(max_kl=between(state.first.max_kl, max_kl, progress))
        if steps_per_update is not None:
            steps = jnp.round(between(state.first.steps_per_update, steps_per_update, progress))
            hyperparameters = hyperparameters._replace(steps_per_update=steps.astype(jnp.int32))
        return state._replace(env_steps=env_steps), hyperparameters

    return Rule(
        init=lambda hyperparameters: _Schedule(hyperparameters, jnp.int32(0)),
        update=update,
        max_steps_per_update=steps_per_update,
    )


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
    _require_positive(window=window, steps_delta=steps_delta, kl_delta=kl_delta)
    _require_bounds(steps_bounds=steps_bounds, kl_bounds=kl_bounds)
    _require_whole(window=window, steps_delta=steps_delta, steps_bounds=steps_bounds)
    if not (_is_number(required) and required >= 0):
        raise ValueError(f"required={required!r} must be a number that is not negative")

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
        steps, kl = hyperparameters.steps_per_update, hyperparameters.max_kl
        if steps_delta is not None:
            steps = jnp.where(change == 0, steps, jnp.clip(steps - change * steps_delta, *steps_bounds))
        if kl_delta is not None:
            kl = jnp.where(change == 0, kl, jnp.clip(kl + change * kl_delta, *kl_bounds))
        state = _Windows(
            sum=jnp.where(full, 0.0, total),
            count=jnp.where(full, 0, count),
            before=jnp.where(full, total, state.before),
            compared=state.compared | full,
        )
        return state, Hyperparameters(kl, steps)

    return Rule(init, update, max_steps_per_update=None if steps_delta is None else steps_bounds[1])


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
    return improvement(
        window=window,
        required=required,
        steps_delta=steps_delta,
        steps_bounds=steps_bounds,
        kl_delta=kl_delta,
        kl_bounds=kl_bounds,
    )


_MEMORY = 50  # updates that `trust` takes the usual size of the strength from


class _Trust(NamedTuple):
    first: Hyperparameters
    log_radius: Float[Array, ""]  # of the max KL that is wanted over the first; below the bound the batch grows instead
    mean_square: RunningMean  # of the strength


def trust(
    *,
    strength: float = 0.0007,
    gain: float = 0.04,
    kl_range: tuple[float, float] = (0.5, 5.0),
    max_steps_per_update: int = 10_240,
) -> Rule:
    """Lets each batch judge the steps that were made before it was collected.

    Every batch promises that the surrogate rises along the step it makes; most of that is noise, which the step follows
    as if it were gradient. The next batches can tell, since their noise is another: `signal` in the metrics is the part
    of the promised slope that they still see along the last steps. As in classical trust-region methods (Conn, Gould &
    Toint 2000) what came true is compared with what was promised, but by slopes, which are known far better than
    returns.

    The squared slope over 2 KL is the squared length of the natural gradient, so that signal * slope^2 / (2 KL) is the
    squared length of the part of it that is true, in units of the standardised advantages: its strength. Where it is
    large, there is far to go, and steps may be longer; where little or nothing is left, steps are too long or mostly
    noise, and the region shrinks. The signal alone would not do: the noise has 10 dimensions on InvertedPendulum and
    4,000 on Humanoid, and the part of a step that is true differs as much where the gradients are equally strong.

        found = signal * slope^2 / (2 KL)    slope and KL of this batch's step, signal of the steps before
        log max_kl += gain * clip((found - strength) / usual, -3, 3)    usual: root mean square of found, 50 updates

    A region smaller than `kl_range` allows is not made by shorter steps but by larger batches, which cost less time:
    the noise that a policy picks up on its way depends on max KL over steps per update (Smith et al. 2018, for SGD),
    and a batch that is larger has more signal (the gradient noise scale, McCandlish et al. 2018).

    Args:
      strength: squared length of the true natural gradient that is aimed at.
      gain: change of the logarithm of the region in an update whose strength is as large as usual.
      kl_range: smallest and largest max KL, over the one that training starts with.
      max_steps_per_update: largest batch; the one that training starts with is the smallest. Give a run that is to
        have a smaller largest batch the same here: the rule does not see what a run cuts off.

    Raises:
      ValueError: a value is not positive, steps are not a whole number, or the bounds are not in order.
    """
    _require_positive(strength=strength, gain=gain, max_steps_per_update=max_steps_per_update)
    _require_whole(max_steps_per_update=max_steps_per_update)
    _require_bounds(kl_range=kl_range)
    low, high = map(math.log, kl_range)

    def init(hyperparameters: Hyperparameters) -> _Trust:
        log_radius = jnp.clip(jnp.float32(0), low, high)
        return _Trust(hyperparameters, log_radius, no_mean())

    def update(
        state: _Trust, hyperparameters: Hyperparameters, metrics: Mapping[str, Array]
    ) -> tuple[_Trust, Hyperparameters]:
        # NaN before there was a step to judge, and where this update made none.
        found = metrics["signal"] * metrics["slope"] ** 2 / (2 * metrics["kl"])
        seen = jnp.isfinite(found)
        mean_square = take_in(state.mean_square, found**2, _MEMORY)
        usual = jnp.sqrt(jnp.where(mean_square.mean > 0, mean_square.mean, 1.0))
        change = jnp.where(seen, jnp.clip((found - strength) / usual, -3, 3), 0.0)
        first = state.first
        growth = jnp.log(jnp.maximum(max_steps_per_update / first.steps_per_update, 1.0))
        log_radius = jnp.clip(state.log_radius + gain * change, low - growth, high)
        steps = first.steps_per_update * jnp.exp(jnp.maximum(low - log_radius, 0.0))
        now = Hyperparameters(
            max_kl=first.max_kl * jnp.exp(jnp.maximum(log_radius, low)),
            steps_per_update=jnp.round(steps).astype(jnp.int32),
        )
        return _Trust(first, log_radius, mean_square), now

    return Rule(init, update, max_steps_per_update=max_steps_per_update)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require_positive(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not (_is_number(value) and value > 0):
            raise ValueError(f"{name}={value!r} must be positive")


def _require_whole(**values: float | tuple[float, float] | None) -> None:
    """Steps are integers in compiled code, and have to stay so."""
    for name, value in values.items():
        parts = value if isinstance(value, tuple) else (value,)
        if not all(part is None or isinstance(part, int) for part in parts):
            raise ValueError(f"{name}={value!r}: steps and updates must be whole numbers")


def _require_bounds(**values: tuple[float, float]) -> None:
    for name, pair in values.items():
        ordered = isinstance(pair, tuple) and len(pair) == 2 and all(map(_is_number, pair)) and 0 < pair[0] <= pair[1]
        if not ordered:
            raise ValueError(f"{name}={pair!r} must be two positive numbers in order")
