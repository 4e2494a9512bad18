"""What an update measures: episodes are counted, the rule adapts the settings, and numbers become rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int, PyTree

from jaxtrpo.adapt import Rule, require_columns
from jaxtrpo.config import Sizes
from jaxtrpo.parallel.collectives import gather_envs
from jaxtrpo.rollout.types import Batch, Episodes, TrainState

if TYPE_CHECKING:
    from jaxtrpo.runs.metrics import Row


class Column(NamedTuple):
    """One of what an update measures."""

    name: str
    whole: bool  # whether it counts something


@struct.dataclass
class Measured:
    """The metrics of updates as one array: a device gives one number as slowly as all of them."""

    values: Any  # Float[Array, "... column"], of JAX or on the host
    columns: tuple[Column, ...] = struct.field(pytree_node=False)


def as_measured(metrics: Mapping[str, Array]) -> Measured:
    """Stacks the metrics of one update; traced."""
    values = [jnp.asarray(value) for value in metrics.values()]
    columns = tuple(Column(name, value.dtype.kind in "biu") for name, value in zip(metrics, values, strict=True))
    return Measured(jnp.stack([value.astype(jnp.float32) for value in values]), columns)


class Moment(NamedTuple):
    """Updates that a driver has made: one, or several that are one program."""

    state: Callable[[], TrainState]  # after them, on the actors' devices; computed on demand
    measured: Measured  # [update, column]; [training, update, column] where several trainings are one program
    collect_seconds: float  # of all of them; NaN where collecting and learning are one program
    learn_seconds: float


def report(
    state: TrainState, batch: Batch, learned: PyTree, info: dict[str, Array], rule: Rule, sizes: Sizes
) -> tuple[TrainState, Measured]:
    """Counts episodes and adapts the settings.

    Returns:
      The state after the update, and its metrics, those of every algorithm first.
    """
    hyperparameters = state.hyperparameters
    episodes, finished = remember(state.episodes, batch)
    measured = {
        "steps_per_update": batch.num_segments * sizes.segment_steps,
        **{name: value for name, value in hyperparameters.items() if name != "steps_per_update"},
        **finished._asdict(),
        **info,
    }
    state = state._replace(learner=learned, episodes=episodes, segments=state.segments + batch.num_segments)
    # Counted in segments, which are whole numbers: a difference of steps in float32 would lose small ones in long runs.
    about = {
        **measured,
        "env_steps": state.segments * float(sizes.segment_steps),
        "progress": state.segments / state.total_segments,
        "steps_left": (state.total_segments - state.segments) * float(sizes.segment_steps),
    }
    require_columns(rule, about)
    adapt, hyperparameters = rule.update(state.adapt, hyperparameters, about)
    return state._replace(hyperparameters=hyperparameters, adapt=adapt), as_measured(measured)


REMEMBERED = 100


class EpisodeInfo(NamedTuple):
    """What one batch says about episodes; all actors together."""

    episodes: Int[Array, ""]  # finished in the batch
    mean_return: Float[Array, ""]  # of those; NaN if there are none
    return_100: Float[Array, ""]  # mean of the last 100 finished, or of all if they are fewer; NaN if there are none
    invalid_steps: Int[Array, ""]  # that are no experience: a simulation broke, or an episode only began


def no_episodes() -> Episodes:
    """At the beginning."""
    return Episodes(jnp.full(REMEMBERED, jnp.nan))


def remember(episodes: Episodes, batch: Batch) -> tuple[Episodes, EpisodeInfo]:
    """Adds the episodes that finished in a batch, in order of time; to be mapped over actors."""
    filled = jnp.arange(batch.steps.invalid.shape[0]) < batch.num_segments
    here = jnp.where(filled[:, None, None], batch.steps.episode_return, jnp.nan)
    broken = jnp.sum(batch.steps.invalid & filled[:, None, None], axis=(0, 1), keepdims=True)
    new, invalid = (leaf.reshape(-1) for leaf in gather_envs((here, broken), axis=2))
    known = jnp.concatenate([episodes.returns, new])
    # The last REMEMBERED numbers keep their order; sorting positions would take longer on accelerators.
    is_number = ~jnp.isnan(known)
    numbers_from_here = jnp.cumsum(is_number[::-1])[::-1]
    kept = is_number & (numbers_from_here <= REMEMBERED)
    place = jnp.where(kept, REMEMBERED - numbers_from_here, REMEMBERED)  # the last place does not exist
    returns = jnp.full(REMEMBERED, jnp.nan).at[place].set(known, mode="drop")
    info = EpisodeInfo(
        episodes=jnp.sum(~jnp.isnan(new)),
        mean_return=jnp.nanmean(new),
        return_100=jnp.nanmean(returns),
        invalid_steps=jnp.sum(invalid),
    )
    return Episodes(returns), info


def rows_of(moment: Moment, measured: np.ndarray, last: Row, before: float, now: float) -> list[dict[str, Any]]:
    """Rows of metrics, one an update; none if there was none.

    Args:
      moment: the updates.
      measured: [update, column]; NaN for those that were not made, since the run was over.
      last: the row before them.
      before: seconds of the run when they began.
      now: and when they were done.
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
    """Columns of a run that has made no update: those that every run has, empty.

    What an algorithm measures beside them is only known when its update is traced.

    Args:
      hyperparameters: names of the settings that are data, which are columns, too.
    """
    settings = [name for name in hyperparameters if name != "steps_per_update"]
    seconds = ("wall_seconds", "collect_seconds", "learn_seconds")
    names = ("update", "env_steps", *seconds, "steps_per_update", *settings, *EpisodeInfo._fields, "eval_return")
    counts = ("update", "env_steps", "steps_per_update", "episodes", "invalid_steps")
    return {name: np.zeros(0, np.int64 if name in counts else np.float64) for name in names}


def as_row(columns: tuple[Column, ...], values: np.ndarray) -> dict[str, Any]:
    """Numbers of one update by name; counts are whole."""
    return {
        column.name: round(value) if column.whole and math.isfinite(value) else value
        for column, value in zip(columns, values.tolist(), strict=True)
    }
