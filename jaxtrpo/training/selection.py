"""Selection of the policy that a run hands out.

It is the one with the best evaluation; in a run without evaluations, the last one whose returns were about the highest;
or simply the last one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from jaxtrpo.envs.abilities import times_changed
from jaxtrpo.envs.base import Environment
from jaxtrpo.ops.moments import Moments
from jaxtrpo.parallel.actors import copied, filled, first
from jaxtrpo.rollout.types import Acting, Best, TrainState

EPISODES = 100  # that `return_100` must be the mean of; at first it is that of fewer, which may be lucky
SIGNIFICANT = 2.0  # standard errors of a difference


def no_best(acting: Acting) -> Best:
    """Returns the state before the first update."""
    nothing, none = jnp.float32(-jnp.inf), jnp.int32(0)
    return Best(nothing, jnp.float32(0), nothing, none, none, acting.policy, acting.obs_moments)


def with_update(
    best: Best, returns: Float[Array, " last"], episodes: Int[Array, ""], segments: Int[Array, ""], acting: Acting
) -> Best:
    """Takes the policy of an update unless returns have been significantly higher.

    The policy is the last one whose `return_100` was lower than the highest by at most two standard errors of their
    difference, which is about Welch's test at 5 %. The highest of many means is partly luck. Later policies are
    preferred because their exploration noise is smaller, and because the last 100 episodes were collected by policies
    before them.

    Args:
      best: state before the update.
      returns: of the last 100 episodes; NaN in place of those that are missing at first.
      episodes: number of episodes that finished in the batch of the update.
      segments: segments of the run after the update.
      acting: learner state after the update.
    """
    seen = jnp.minimum(best.episodes + episodes, EPISODES)
    mean = jnp.where(seen == EPISODES, jnp.mean(returns), -jnp.inf)
    is_record = (mean > best.highest) & jnp.isfinite(mean)
    highest = jnp.where(is_record, mean, best.highest)
    error = jnp.std(returns, ddof=1) / math.sqrt(EPISODES)
    of_highest = jnp.where(is_record, error, best.standard_error)
    taken = jnp.isfinite(mean) & (mean >= highest - SIGNIFICANT * jnp.hypot(of_highest, error))
    of_update = mean, segments, acting.policy, acting.obs_moments
    before = best.return_100, best.segments, best.policy, best.obs_moments
    found, where, policy, moments = optax.tree.where(taken, of_update, before)
    return Best(highest, of_highest, found, seen, where, policy, moments)


def with_evaluation(best: Best | None, value: float, state: TrainState) -> Best | None:
    """Takes the policy of an update that was evaluated, unless an earlier one was better.

    Args:
      best: of the evaluations so far, of a placed state; None before the first.
      value: mean return of the evaluation.
      state: placed state after the update.
    """
    before = -math.inf if best is None else float(first(best.highest))
    if not isinstance(state.best, Best) or value < before:
        return best
    of_update = jax.tree.map(copied, (state.segments, state.learner.policy, state.learner.obs_moments))
    highest, none = filled(state.best.highest, value), filled(state.best.standard_error, 0)
    return Best(highest, none, highest, filled(state.best.episodes, 0), *of_update)


def best_evaluation(state: TrainState, metrics: Mapping[str, np.ndarray]) -> Best | None:
    """Returns what `with_evaluation` has returned last, from the placed state and the metrics of a run."""
    evaluated = np.isfinite(metrics.get("eval_return", np.zeros(0))).any()
    return state.best if evaluated and isinstance(state.best, Best) else None


def begun_anew(state: TrainState) -> TrainState:
    """Returns a placed state without a best policy, for environments that changed: returns no longer compare."""
    if not isinstance(best := state.best, Best):
        return state
    none = best._replace(highest=filled(best.highest, -math.inf), episodes=filled(best.episodes, 0))
    return state._replace(best=none)


def noticing_changes(env: Environment) -> Callable[[TrainState, int], TrainState]:
    """Returns a function that begins anew after every change of simulators by `set_env`.

    It takes a placed state, and how often simulators had been changed when the next batch began to be collected, since
    a batch from before a change may be learned from after it.
    """
    seen = times_changed(env)

    def noticed(state: TrainState, changes: int) -> TrainState:
        nonlocal seen
        if changes <= seen:
            return state
        seen = changes
        return begun_anew(state)

    return noticed


def selected(best: Best | tuple[()], policy: PyTree, moments: Moments) -> tuple[PyTree, Moments]:
    """Returns parameters and moments of the policy that a run hands out.

    Args:
      best: of the state of the run, on the host, without an axis of actors; () if the last policy is handed out.
      policy: last parameters.
      moments: last moments of observations.
    """
    if isinstance(best, Best) and np.isfinite(best.highest):
        return best.policy, best.obs_moments
    return policy, moments


def earlier_best(state: TrainState, env_steps: int) -> tuple[int, float] | None:
    """Returns environment steps and return of the update whose policy is handed out; None if it is the last.

    The return is that of the evaluation, or `return_100` in a run without evaluations.

    Args:
      state: placed state of a run that has made updates.
      env_steps: of the run.
    """
    if not isinstance(state.best, Best):
        return None
    best = state.best
    segments, of_best, highest, found = first((state.segments, best.segments, best.highest, best.return_100))
    if not np.isfinite(highest) or of_best == segments:
        return None
    return env_steps // int(segments) * int(of_best), float(found)


def with_segments(state: TrainState, segments: np.int32) -> TrainState:
    """Returns a gathered state whose segments are counted in another unit, as for another number of actors."""
    best = state.best
    if isinstance(best, Best) and state.segments:
        best = best._replace(segments=np.int32(int(best.segments) * int(segments) // int(state.segments)))
    return state._replace(segments=segments, best=best)


def with_best(saved: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the arrays of a saved `TrainState` by their path; where nothing was compared, the comparison begins."""
    floats = dict.fromkeys((".best.highest", ".best.standard_error", ".best.return_100"), np.float32(-np.inf))
    begun = {**floats, ".best.episodes": np.int32(0), ".best.segments": np.int32(0)}
    acting = re.compile(r"\.learner(\.(policy|obs_moments)\b.*)")
    parts = {name: acting.fullmatch(name) for name in saved}
    return {**begun, **{f".best{part[1]}": saved[name] for name, part in parts.items() if part}, **saved}


def without_best(saved: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the arrays of a saved `TrainState` by their path, for a run that hands out the last policy."""
    return {name: leaf for name, leaf in saved.items() if not name.startswith(".best")}
