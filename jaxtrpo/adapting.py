"""What follows learning in an update: episodes are counted, and the rule adapts the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, PyTree

from jaxtrpo.adapt import Rule, require_columns
from jaxtrpo.config import Sizes
from jaxtrpo.episodes import remember
from jaxtrpo.types import Batch, TrainState


class Column(NamedTuple):
    """One of what an update measures."""

    name: str
    whole: bool  # whether it counts something


def report(
    state: TrainState, batch: Batch, learned: PyTree, info: dict[str, Array], rule: Rule, sizes: Sizes
) -> tuple[TrainState, dict[str, Array]]:
    """Counts episodes and adapts the settings.

    Returns:
      The state after the update, and what was measured in it, common columns first.
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
    return state._replace(hyperparameters=hyperparameters, adapt=adapt), measured


def columns_of(measured: Mapping[str, Array]) -> tuple[Column, ...]:
    """The columns that measurements become."""
    return tuple(Column(name, jnp.asarray(value).dtype.kind in "biu") for name, value in measured.items())
