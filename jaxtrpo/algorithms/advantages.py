"""Advantages and critic targets of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num, PyTree

from jaxtrpo.critics.critic import Critic, Targets
from jaxtrpo.ops.gae import Tail, empty_tail, generalized_advantages
from jaxtrpo.ops.moments import VECTOR, Moments, normalize, weighted_moments
from jaxtrpo.ops.running_mean import RunningMean, update_mean
from jaxtrpo.ops.segments import map_segments
from jaxtrpo.parallel.collectives import sum_over_actors
from jaxtrpo.policies.recurrence import Recurrence, Sequences, entry, one_axis_of_steps
from jaxtrpo.rollout.ends import final_values
from jaxtrpo.rollout.types import Batch, Ends, Steps


class Advantages(NamedTuple):
    """Standardised advantages and critic targets of a batch; leading axes segment, time, env."""

    advantage: Float[Array, "segment time env"]  # mean 0, variance 1 over the valid steps of all actors
    targets: Targets  # for the critic
    explained_variance: Float[Array, ""]  # of the targets, by the critic before its fit
    variance: Float[Array, ""]  # of the advantages before standardising


def compare_with_usual(
    usual: RunningMean, variance: Float[Array, ""], memory: int
) -> tuple[RunningMean, Float[Array, ""]]:
    """Computes min(1, variance / usual variance), the fraction of the trust region that an update may use.

    Standardising advantages hides how much there is to learn from a batch. On a nearly solved task, most batches hold
    only noise and a few hold a failure; with steps of equal length, the noise of the many undoes what was learned from
    the few. A natural gradient step with a constant learning rate has a length proportional to the advantages, and thus
    a KL proportional to their variance.

    Args:
      usual: running mean of the advantage variance over previous updates.
      variance: advantage variance of this update; ignored if not finite.
      memory: number of updates that the running mean covers.

    Returns:
      The running mean including this update, and the fraction of the trust region.
    """
    usual = update_mean(usual, variance, memory)
    comparable = jnp.isfinite(variance) & (usual.mean > 0)
    share = jnp.minimum(variance / jnp.where(usual.mean > 0, usual.mean, 1.0), 1.0)
    return usual, jnp.where(comparable, share, 1.0)


class Unscaled(NamedTuple):
    """Advantages and targets of one actor's part of a batch, not standardised; leading axes segment, time, env."""

    advantage: Float[Array, "segment time env"]  # units of reward
    targets: Targets
    # Predicted advantages of the actions taken, already subtracted from the targets; None without an `ActionAdvantage`.
    known: Float[Array, "segment time env"] | None = None


def valid_weight(batch: Batch) -> Float[Array, "segment time env"]:
    """Returns 1 for every step that counts and 0 for broken simulation steps and for padding."""
    filled = jnp.arange(batch.steps.invalid.shape[0]) < batch.num_segments
    return (filled[:, None, None] & ~batch.steps.invalid).astype(jnp.float32)


# (normalised observations, actions in policy units) -> predicted advantages of the actions, units of reward, whose mean
# over the policy's actions is 0
ActionAdvantage = Callable[[Float[Array, "... obs"], Num[Array, "... action"]], Float[Array, "..."]]


@jax.named_scope("advantages")
def standardize(found: Unscaled, moments: Moments) -> Advantages:
    """Standardises advantages to mean 0 and variance 1 over the valid steps of all actors.

    Args:
      found: this actor's advantages and targets.
      moments: moments that observations were normalised with. For the first batch their scale is unknown, so all states
        look alike and a policy could only learn noise; its advantages are set to 0.
    """
    weight = found.targets.weight
    of_advantage = weighted_moments(found.advantage, weight, sum_over_actors)
    of_target = weighted_moments(found.targets.value, weight, sum_over_actors)
    # A target is V + A - C, so the critic's error is A - C.
    of_error = of_advantage
    if found.known is not None:
        of_error = weighted_moments(found.advantage - found.known, weight, sum_over_actors)
    return Advantages(
        advantage=jnp.where(moments.known, weight * (found.advantage - of_advantage.mean) / of_advantage.std, 0.0),
        targets=found.targets,
        explained_variance=1.0 - of_error.variance / of_target.variance,
        variance=of_advantage.variance,
    )


def normalized(obs: PyTree, moments: Moments, num_segments: Int[Array, ""]) -> PyTree:
    """Normalises the observations of the filled segments, leaves [segment, time, env, ...]; images are not copied."""
    if isinstance(obs, dict):
        return {name: normalized(part, moments, num_segments) if name == VECTOR else part for name, part in obs.items()}
    return map_segments(lambda i: normalize(obs[i], moments), num_segments, obs.shape[0])


@jax.named_scope("advantages")
def estimate_advantages(
    critic: Critic,
    state: PyTree,
    moments: Moments,
    batch: Batch,
    *,
    discount: float,
    gae_lambda: float,
    action_advantage: ActionAdvantage | None = None,
) -> Unscaled:
    """Computes generalised advantages and lambda-returns of one actor's batch, without collectives.

    Args:
      critic: predicts the value of states.
      state: state of the critic.
      moments: moments that observations were normalised with when the policy acted.
      batch: one actor's part of the batch.
      discount: discount factor per environment step.
      gae_lambda: see `ops.gae`; 1 gives Monte Carlo returns as targets.
      action_advantage: predicts advantages of actions, which are subtracted from what follows a step and from the
        targets (see `ops.gae`).

    Returns:
      Advantages, and lambda-returns as targets. Steps that do not count have weight 0.
    """
    last = batch.num_segments - 1
    obs = normalized(batch.steps.obs, moments, batch.num_segments)
    remembered = (
        None if critic.recurrence is None else _values_in_sequence(critic.recurrence, state, moments, obs, batch)
    )

    def values_of(index: Int[Array, ""], steps: Steps, cut: Bool[Array, "time env"]) -> tuple[Array, Array]:
        """Returns the values of a segment's observations, and those of its final observations where they are needed."""
        if remembered is not None:
            return entry(remembered, index)

        def of_final_obs() -> Float[Array, "time env"]:
            if not batch.ends:
                return critic.value(state, normalize(steps.final_obs, moments), steps.elapsed + 1)
            return final_values(steps, now, _ends(batch.ends, index), index == last, at_ends)

        def at_ends(obs: PyTree, step: Int[Array, "slot env"]) -> Float[Array, "slot env"]:
            elapsed = jnp.take_along_axis(steps.elapsed, step, axis=0)
            return critic.value(state, normalize(obs, moments), elapsed + 1)

        now = critic.value(state, entry(obs, index), steps.elapsed)
        # Few segments contain a cut, and only those need the values of final observations.
        return now, jax.lax.cond(jnp.any(cut), of_final_obs, lambda: jnp.zeros_like(steps.reward))

    def segment_backwards(i: Int[Array, ""], carry: tuple[Tail, Array, Array, Array | None]) -> tuple:
        tail, advantage, value, worth = carry
        index = last - i
        steps: Steps = entry(batch.steps, index)
        cut = _cut(steps, index == last)
        now, final_value = values_of(index, steps, cut)
        known = None if action_advantage is None else action_advantage(entry(obs, index), steps.action)
        found, tail = generalized_advantages(
            steps.reward,
            now,
            final_value,
            steps.terminated,
            cut,
            ~steps.invalid,
            tail,
            discount=discount,
            gae_lambda=gae_lambda,
            action_advantage=known,
        )
        worth = None if worth is None else worth.at[index].set(known)
        return tail, advantage.at[index].set(found), value.at[index].set(now), worth

    nothing = jnp.zeros_like(batch.steps.reward)
    start = (empty_tail(nothing.shape[-1]), nothing, nothing, None if action_advantage is None else nothing)
    _, advantage, value, known = jax.lax.fori_loop(0, batch.num_segments, segment_backwards, start)

    target = value + advantage if known is None else value - known + advantage
    targets = Targets(obs, batch.steps.elapsed, target, valid_weight(batch), batch.num_segments)
    return Unscaled(advantage, targets, known)


def _ends(ends: Ends, index: Int[Array, ""]) -> Ends:
    """Returns those of one segment."""
    return ends._replace(obs=entry(ends.obs, index), step=ends.step[index])


def _cut(steps: Steps, is_last: Bool[Array, ""]) -> Bool[Array, "time env"]:
    """Returns where a segment's trajectories continue but the data does not; `is_last`: nothing follows the segment."""
    at_end = jnp.zeros_like(steps.truncated).at[-1].set(is_last) & ~steps.terminated
    return steps.truncated | at_end


def _values_in_sequence(
    recurrence: Recurrence,
    state: PyTree,
    moments: Moments,
    obs: PyTree,
    batch: Batch,
) -> tuple[Float[Array, "segment time env"], Float[Array, "segment time env"]]:
    """Computes what a critic with memory predicts, from its carry at the beginning of the batch onwards.

    Returns:
      Values of all observations, and values of final observations, one step further, in segments where one is needed.
    """
    last = batch.num_segments - 1

    def segment(index: Int[Array, ""], found: tuple[PyTree, Array, Array]) -> tuple[PyTree, Array, Array]:
        carry, now, final = found
        steps: Steps = entry(batch.steps, index)
        values, carries = recurrence.unroll(state, Sequences(entry(obs, index), steps.elapsed == 0, carry))

        def at_ends(obs: PyTree, step: Int[Array, "slot env"]) -> Float[Array, "slot env"]:
            then = jax.tree.map(lambda leaf: leaf[step, jnp.arange(step.shape[1])], carries)
            carry, final_obs = one_axis_of_steps((then, obs))
            values, _ = recurrence.step(state, carry, normalize(final_obs, moments), jnp.zeros(step.size, bool))
            return values.reshape(step.shape)

        def one_step_further() -> Float[Array, "time env"]:
            if batch.ends:
                return final_values(steps, values, _ends(batch.ends, index), index == last, at_ends)
            carry, final_obs = one_axis_of_steps((carries, steps.final_obs))
            continues = jnp.zeros(steps.reward.size, bool)
            after, _ = recurrence.step(state, carry, normalize(final_obs, moments), continues)
            return after.reshape(steps.reward.shape)

        needed = jnp.any(_cut(steps, index == last))
        further = jax.lax.cond(needed, one_step_further, lambda: jnp.zeros_like(steps.reward))
        return entry(carries, -1), now.at[index].set(values), final.at[index].set(further)

    nothing = jnp.zeros_like(batch.steps.reward)
    start = entry(batch.carries.critic, 0), nothing, nothing
    _, now, final = jax.lax.fori_loop(0, batch.num_segments, segment, start)
    return now, final
