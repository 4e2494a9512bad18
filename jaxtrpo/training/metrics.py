"""Metrics of updates: counts of episodes, what rules read, and rows of metrics.csv."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int, PyTree

from jaxtrpo.adapt import Rule, require_columns, updated
from jaxtrpo.config import Sizes
from jaxtrpo.config.messages import type_name
from jaxtrpo.parallel.collectives import gather_envs
from jaxtrpo.rollout.types import Acting, Batch, Best, Episodes, TrainState
from jaxtrpo.training.selection import EPISODES, with_update

if TYPE_CHECKING:
    from jaxtrpo.runs.metrics import Row


class Column(NamedTuple):
    """One metric of an update."""

    name: str
    whole: bool  # whether it is an integer


@struct.dataclass
class Measured:
    """Metrics of updates as one array, because copying one number from a device takes as long as copying all."""

    values: Any  # Float[Array, "... column"], of JAX or NumPy
    columns: tuple[Column, ...] = struct.field(pytree_node=False)


def as_measured(metrics: Mapping[str, Array]) -> Measured:
    """Stacks the metrics of one update; traced."""
    values = [jnp.asarray(value) for value in metrics.values()]
    columns = tuple(Column(name, value.dtype.kind in "biu") for name, value in zip(metrics, values, strict=True))
    return Measured(jnp.stack([value.astype(jnp.float32) for value in values]), columns)


class Moment(NamedTuple):
    """One update of a driver, or several that are one program."""

    state: Callable[[], TrainState]  # after the updates, on the actors' devices; computed on demand
    # The same without the contents of the replay buffer, which would have to be copied before the next update.
    shown: Callable[[], TrainState]
    measured: Measured  # [update, column]; [training, update, column] where several trainings are one program
    collect_seconds: float  # of all updates together; NaN where collecting and learning are one program
    learn_seconds: float  # of all updates together


def report(
    state: TrainState,
    batch: Batch,
    learned: PyTree,
    info: dict[str, Array],
    rule: Rule,
    sizes: Sizes,
    acting: Acting | None = None,
) -> tuple[TrainState, Measured]:
    """Counts episodes, keeps the policy unless returns have fallen, and lets the rule adapt the settings.

    Args:
      state: before the update.
      batch: that was learned from.
      learned: learner state after the update.
      info: metrics of the algorithm.
      rule: adapts the settings.
      sizes: batch sizes of the actors that collected the batch.
      acting: policy and moments after the update; None for those of `learned`.

    Returns:
      The state after the update, and its metrics: first those that every algorithm has.
    """
    hyperparameters = state.hyperparameters
    episodes, finished, logged = remember(state.episodes, batch)
    measured = {
        "steps_per_update": batch.num_segments * sizes.segment_steps,
        **{name: value for name, value in hyperparameters.items() if name != "steps_per_update"},
        **finished._asdict(),
    }
    _require_valid_metrics(info, measured)
    measured |= info
    _require_new(logged, measured)
    measured |= logged
    state = state._replace(learner=learned, episodes=episodes, segments=state.segments + batch.num_segments)
    if isinstance(state.best, Best):
        now = learned if acting is None else acting
        best = with_update(state.best, episodes.returns, finished.episodes, state.segments, now)
        state = state._replace(best=best)
    # Counted in segments, as integers: in long runs, differences of environment steps in float32 would be inexact.
    readable = {
        **measured,
        "env_steps": state.segments * float(sizes.segment_steps),
        "progress": state.segments / state.total_segments,
        "steps_left": (state.total_segments - state.segments) * float(sizes.segment_steps),
    }
    require_columns(rule, readable)
    adapt, hyperparameters = updated(rule, state.adapt, hyperparameters, readable)
    return state._replace(hyperparameters=hyperparameters, adapt=adapt), as_measured(measured)


def _require_valid_metrics(info: Mapping[str, Any], columns: Iterable[str]) -> None:
    """Raises ValueError for a metric of the algorithm that is not a scalar, or has a name that every run uses."""
    taken = sorted({*info} & {*columns, *RESERVED})
    if taken:
        raise ValueError(f"algorithm: it reports {', '.join(taken)}, a name that every run uses; rename the metric")
    for name, value in info.items():
        if not isinstance(value, jax.Array | np.ndarray | np.generic | int | float) or jnp.ndim(value):
            found = f"of shape {jnp.shape(value)}" if hasattr(value, "shape") else f"a {type_name(value)}"
            raise ValueError(f"algorithm: its metric {name} must be a scalar, not {found}")


def _require_new(logged: Iterable[str], columns: Iterable[str]) -> None:
    """Raises ValueError for an entry of `info` that is called like another column."""
    taken = sorted({*logged} & {*columns, *TIMES, *RUN_COLUMNS})
    if taken:
        raise ValueError(f"log_info: {', '.join(taken)} is a column of metrics.csv already; rename the entry of info")


RUN_COLUMNS = ("update", "env_steps", "eval_return")
PROGRESS = ("progress", "steps_left")  # which rules read besides
TIMES = ("wall_seconds", "collect_seconds", "learn_seconds")


class EpisodeInfo(NamedTuple):
    """Metrics of the episodes in one batch of all actors."""

    episodes: Int[Array, ""]  # finished in the batch
    mean_return: Float[Array, ""]  # of these episodes; NaN if there are none
    return_100: Float[Array, ""]  # mean over the last 100 finished episodes, or fewer at first; NaN if there are none
    mean_length: Float[Array, ""]  # steps of these episodes; NaN if there are none
    invalid_steps: Int[Array, ""]  # not learned from: a simulation broke, or the step only reset an environment


RESERVED = {*RUN_COLUMNS, *PROGRESS, *TIMES, *EpisodeInfo._fields}  # names that no algorithm may give its own numbers


def no_episodes() -> Episodes:
    """Returns the state before the first episode."""
    return Episodes(jnp.full(EPISODES, jnp.nan))


def remember(episodes: Episodes, batch: Batch) -> tuple[Episodes, EpisodeInfo, dict[str, Float[Array, ""]]]:
    """Adds the episodes that finished in a batch, in order of time; must be mapped over actors.

    Returns:
      The state, metrics, and means of the entries of `info` that are logged; NaN if no episode has one.
    """
    steps = batch.steps
    filled = (jnp.arange(steps.invalid.shape[0]) < batch.num_segments)[:, None, None]
    here = jnp.where(filled, steps.episode_return, jnp.nan)
    length = jnp.where(jnp.isnan(here), jnp.nan, steps.elapsed + 1.0)
    logged = jax.tree.map(lambda values: jnp.where(filled, values, jnp.nan), steps.info or {})
    broken = jnp.sum(steps.invalid & filled, axis=(0, 1), keepdims=True)
    gathered = gather_envs((here, broken, length, logged), axis=2)
    new, invalid, lengths, logged = jax.tree.map(lambda leaf: leaf.reshape(-1), gathered)
    known = jnp.concatenate([episodes.returns, new])
    # The last EPISODES numbers keep their order; sorting positions would take longer on accelerators.
    is_number = ~jnp.isnan(known)
    numbers_from_here = jnp.cumsum(is_number[::-1])[::-1]
    kept = is_number & (numbers_from_here <= EPISODES)
    place = jnp.where(kept, EPISODES - numbers_from_here, EPISODES)  # the last place does not exist
    returns = jnp.full(EPISODES, jnp.nan).at[place].set(known, mode="drop")
    info = EpisodeInfo(
        episodes=jnp.sum(~jnp.isnan(new)),
        mean_return=jnp.nanmean(new),
        return_100=jnp.nanmean(returns),
        mean_length=jnp.nanmean(lengths),
        invalid_steps=jnp.sum(invalid),
    )
    return Episodes(returns), info, jax.tree.map(jnp.nanmean, logged)


def rows_of(moment: Moment, measured: np.ndarray, last: Row, before: float, now: float) -> list[dict[str, Any]]:
    """Returns one row of metrics per update; none if no update was made.

    Args:
      moment: the updates.
      measured: [update, column]; NaN for updates that were skipped because the run was over.
      last: row of the previous update.
      before: seconds since the start of the run when the updates began.
      now: seconds since the start of the run when they ended.
    """
    made = measured[~np.isnan(measured).all(axis=1)]
    update, env_steps = int(last["update"] or 0), int(last["env_steps"] or 0)
    rows = []
    for part, values in enumerate(made, 1):
        of_update = as_row(moment.measured.columns, values)
        env_steps += int(of_update["steps_per_update"])
        row = {
            "update": update + part,
            "env_steps": env_steps,
            "wall_seconds": before + (now - before) * part / len(made),
            "collect_seconds": moment.collect_seconds / len(made),
            "learn_seconds": moment.learn_seconds / len(made),
            **of_update,
            "eval_return": math.nan,
        }
        rows.append(row)
    return rows


def no_rows(hyperparameters: Iterable[str]) -> dict[str, np.ndarray]:
    """Returns the empty columns of a run without updates: those that every run has.

    The columns of the algorithm itself are only known once its update is traced.

    Args:
      hyperparameters: names of the traced settings, which are columns, too.
    """
    settings = [name for name in hyperparameters if name != "steps_per_update"]
    names = ("update", "env_steps", *TIMES, "steps_per_update", *settings, *EpisodeInfo._fields, "eval_return")
    counts = ("update", "env_steps", "steps_per_update", "episodes", "invalid_steps")
    return {name: np.zeros(0, np.int64 if name in counts else np.float64) for name in names}


def as_row(columns: tuple[Column, ...], values: np.ndarray) -> dict[str, Any]:
    """Returns the metrics of one update by name; counts are integers."""
    return {
        column.name: round(value) if column.whole and math.isfinite(value) else value
        for column, value in zip(columns, values.tolist(), strict=True)
    }
