"""Batch -> advantages and critic targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, PyTree

from jaxtrpo.critics.critic import Critic, Targets
from jaxtrpo.ops.gae import Tail, empty_tail, generalized_advantages
from jaxtrpo.ops.moments import Moments, normalize, weighted_moments
from jaxtrpo.ops.running_mean import RunningMean, take_in
from jaxtrpo.ops.segments import map_segments
from jaxtrpo.parallel.collectives import sum_over_actors
from jaxtrpo.rollout.types import Batch, Steps


class Advantages(NamedTuple):
    """What the learner makes of a batch before it learns; leading axes segment, time, env."""

    advantage: Float[Array, "segment time env"]  # mean 0, variance 1 over all actors' valid steps
    targets: Targets  # for the critic
    explained_variance: Float[Array, ""]  # of the targets, by the critic that has not seen them
    variance: Float[Array, ""]  # of the advantages before they were standardised


def compare_with_usual(
    usual: RunningMean, variance: Float[Array, ""], memory: int
) -> tuple[RunningMean, Float[Array, ""]]:
    """Takes an update's variance into the usual one, and finds min(1, variance / usual variance).

    Standardised advantages hide how much there is to learn from a batch. On a task that is nearly solved most batches
    hold nothing but noise and a few hold a failure; steps of one length for all let the noise of the many undo what
    was learned from the few. A natural gradient step of constant rate has a length in proportion to the advantages,
    and a KL in proportion to their variance.

    Args:
      usual: variance of the advantages of the updates before.
      variance: of the advantages of this one; one that is not finite does not count.
      memory: updates that the usual variance is taken from.

    Returns:
      The usual variance with this update, and the part of the trust region that is left to it.
    """
    usual = take_in(usual, variance, memory)
    comparable = jnp.isfinite(variance) & (usual.mean > 0)
    share = jnp.minimum(variance / jnp.where(usual.mean > 0, usual.mean, 1.0), 1.0)
    return usual, jnp.where(comparable, share, 1.0)


class Unscaled(NamedTuple):
    """What one actor makes of its part of a batch alone; leading axes segment, time, env."""

    advantage: Float[Array, "segment time env"]  # units of reward
    targets: Targets
    # What is known of the worth of the actions, and taken out of the targets; None where nothing is.
    known: Float[Array, "segment time env"] | None = None


def valid_weight(batch: Batch) -> Float[Array, "segment time env"]:
    """1 for a step that counts; 0 for one whose simulation broke, or where the buffer holds no data."""
    filled = jnp.arange(batch.steps.invalid.shape[0]) < batch.num_segments
    return (filled[:, None, None] & ~batch.steps.invalid).astype(jnp.float32)


# (normalised observations, actions in policy units) -> how much better than usual the actions are, units of reward;
# means over the policy's actions are 0
ActionAdvantage = Callable[[Float[Array, "... obs"], Num[Array, "... action"]], Float[Array, "..."]]


def standardize(found: Unscaled, moments: Moments) -> Advantages:
    """Advantages of mean 0 and variance 1 over all actors' valid steps.

    Args:
      found: by all actors, each its part.
      moments: that observations were normalised with. Before the first batch they know no scale, and all states look
        alike: a policy that learned from that batch would follow what noise says of one state. Its advantages are 0.
    """
    weight = found.targets.weight
    of_advantage = weighted_moments(found.advantage, weight, sum_over_actors)
    of_target = weighted_moments(found.targets.value, weight, sum_over_actors)
    # A target is V + A - C, so that the critic's error is A - C.
    of_error = of_advantage
    if found.known is not None:
        of_error = weighted_moments(found.advantage - found.known, weight, sum_over_actors)
    return Advantages(
        advantage=jnp.where(moments.known, weight * (found.advantage - of_advantage.mean) / of_advantage.std, 0.0),
        targets=found.targets,
        explained_variance=1.0 - of_error.variance / of_target.variance,
        variance=of_advantage.variance,
    )


def normalized(
    obs: Float[Array, "segment time env obs"], moments: Moments, num_segments: Int[Array, ""]
) -> Float[Array, "segment time env obs"]:
    """Observations of the filled segments, normalised."""
    return map_segments(lambda i: normalize(obs[i], moments), num_segments, obs.shape[0])


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
    """Generalised advantages of one actor's batch; no actor meets another for them.

    Args:
      critic: predicts what follows.
      state: of the critic.
      moments: that the observations were normalised with when the policy acted.
      batch: one actor's part.
      discount: per environment step.
      gae_lambda: see `ops.gae`; 1 gives plain Monte Carlo returns as targets.
      action_advantage: takes the noise of actions out of what follows a step, and out of the targets (see `ops.gae`).

    Returns:
      Advantages, and lambda-returns as targets. Steps that do not count have weight 0.
    """
    last = batch.num_segments - 1
    obs = normalized(batch.steps.obs, moments, batch.num_segments)

    def segment_backwards(i: Int[Array, ""], carry: tuple[Tail, Array, Array, Array | None]) -> tuple:
        tail, advantage, value, worth = carry
        index = last - i
        steps: Steps = jax.tree.map(lambda leaf: leaf[index], batch.steps)
        at_end = jnp.zeros_like(steps.truncated).at[-1].set(index == last) & ~steps.terminated
        cut = steps.truncated | at_end
        # Few segments hold a cut, and only those need values of the states that the reset hid.
        final_value = jax.lax.cond(
            jnp.any(cut),
            lambda: critic.value(state, normalize(steps.final_obs, moments), steps.elapsed + 1),
            lambda: jnp.zeros_like(steps.reward),
        )
        now = critic.value(state, obs[index], steps.elapsed)
        known = None if action_advantage is None else action_advantage(obs[index], steps.action)
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
