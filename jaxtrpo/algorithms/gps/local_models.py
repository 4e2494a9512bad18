"""Local models around the samples of each condition: dynamics, reward and the linearised policy."""

from __future__ import annotations

import functools
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array, Float, Int, PyTree

from jaxtrpo.algorithms.gps.linear_fit import LinearFit, centres, linear_fit
from jaxtrpo.algorithms.gps.lqr import Controller, Dynamics, Reward
from jaxtrpo.algorithms.gps.quadratic_regression import Quadratic, Sums, Validated, add, concave, sums_of, validated_fit
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.ops.moments import Moments, normalize, weighted_moments
from jaxtrpo.parallel.collectives import sum_over_actors
from jaxtrpo.policies.distributions import Gaussian
from jaxtrpo.policies.networks import Policy
from jaxtrpo.rollout.types import Batch

# Candidate penalties of the shared model. A quadratic reward needs the smallest; dynamics with contacts need more,
# because a model with an error in one step is unstable over a hundred.
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
BEYOND_BOUNDS = 2.0  # standard deviations; of the actions of such a mean, one in 44 is inside
LEAST_INSIDE = 1e-3  # of the actions, for a division; fewer only where the range is much narrower than the noise
NEWTON_STEPS = 12
LEAST_SCALE = 1e-3  # of states and actions that hardly vary, in standard deviations of the first batch


class Samples(NamedTuple):
    """One actor's part of a batch, by condition. States are standardised, actions clipped to the action space."""

    state: Float[Array, "condition time sample x"]
    action: Float[Array, "condition time sample u"]
    after: Float[Array, "condition time sample x"]  # next state
    reward: Float[Array, "condition time sample"]  # includes the cost of early termination
    weight: Float[Array, "condition time sample"]  # 1 while the episode lasts, else 0
    obs: Float[Array, "condition time sample obs"]  # raw, as returned by the environment
    return_: Float[Array, "condition sample"]

    @property
    def z(self) -> Float[Array, "condition time sample z"]:
        """States and actions, concatenated."""
        return jnp.concatenate([self.state, self.action], axis=-1)


class LocalModels(NamedTuple):
    """Models of every condition of one actor, around the mean of its samples at each step."""

    centre: Float[Array, "condition time z"]
    dynamics: Dynamics
    reward: Reward
    reference: Controller  # the policy that acted, linearised
    seen: Float[Array, "condition time"]  # 1 where at least one episode still lasts, else 0


def samples_of(batch: Batch, frame: Moments, samples: int, actions: ActionSpace) -> Samples:
    """Arranges a batch of one episode per environment by condition.

    After early termination, the rest of an episode has weight 0 and reward 0. Models, however, extend to the horizon
    and would predict a typical reward for each of these steps, so that amount is subtracted from the reward of the
    terminating step.

    Args:
      batch: batch of one segment, in which neighbouring environments share an initial state.
      frame: observation moments with which states are standardised.
      samples: number of environments that share an initial state.
      actions: action space.
    """
    steps = batch.steps

    def sort(leaf: Float[Array, "1 time env ..."]) -> Float[Array, "condition time sample ..."]:
        time, envs = leaf.shape[1:3]
        return jnp.swapaxes(leaf[0].reshape(time, envs // samples, samples, *leaf.shape[3:]), 0, 1)

    weight = sort((~steps.invalid).astype(jnp.float32))
    reward = weight * sort(steps.reward)
    usual = weighted_moments(reward, weight, sum_over_actors).mean
    remaining = reward.shape[1] - 1 - jnp.arange(reward.shape[1], dtype=jnp.float32)
    lost = sort(steps.terminated.astype(jnp.float32)) * usual * remaining[None, :, None]
    obs, after = sort(steps.obs), sort(steps.final_obs)
    return Samples(
        state=(obs - frame.mean) / frame.std,
        action=jnp.clip(sort(steps.action), *actions.policy_range()),
        after=(after - frame.mean) / frame.std,
        reward=reward - weight * lost,
        weight=weight,
        obs=obs,
        return_=jnp.sum(reward, axis=1),
    )


def shared_model(samples: Samples, known: Sums) -> tuple[Sums, Validated]:
    """Fits the regression shared by all conditions and the last updates to the samples of all actors.

    Args:
      samples: samples of one actor.
      known: sums remembered from previous updates.

    Returns:
      The sums of the new samples alone, and the fit to old and new sums together.
    """
    number, outputs = samples.weight.shape[2], _outputs(samples)
    weights = [samples.weight * (jnp.arange(number) % 2 == half) for half in (0, 1)]
    rows, values = _rows(samples.z), _rows(outputs)
    first, second = sum_over_actors(tuple(sums_of(rows, values, weight.reshape(-1)) for weight in weights))

    def squared_error(fit: Quadratic, half: int) -> Float[Array, " output"]:
        error = jnp.einsum("cts,ctso->o", weights[half], (outputs - fit(samples.z)) ** 2)
        error, count = sum_over_actors((error, jnp.sum(weights[half])))
        return error / jnp.maximum(count, 1.0)

    variance = weighted_moments(outputs, samples.weight, sum_over_actors).variance
    found = validated_fit(known, (first, second), squared_error, variance, samples.z.shape[-1], RIDGES)
    return add(first, second), found


def local_models(
    samples: Samples,
    shared: Quadratic,
    policy: Policy,
    params: PyTree,
    moments: Moments,
    frame: Moments,
    actions: ActionSpace,
    *,
    strength: float,
    window: int,
) -> LocalModels:
    """Fits models around the samples of each condition, with the shared regression as their prior.

    The prior is a quadratic regression of state change and reward on state and action, linearised around the mean of
    the samples of each step; `linear_fit` corrects it. The curvature of the reward is that of the shared regression,
    projected onto concave functions.

    Args:
      samples: samples of one actor's conditions.
      shared: regression shared by all conditions.
      policy: policy that acted.
      params: its parameters.
      moments: moments that its observations were normalised with.
      frame: observation moments with which states are standardised.
      actions: action space.
      strength: number of samples that the prior is worth at each step of a condition.
      window: steps on either side whose samples also count.
    """
    num_x = samples.state.shape[-1]
    outputs, weight = _outputs(samples), samples.weight
    residual = outputs - shared(samples.z)
    count = jnp.maximum(sum_over_actors(jnp.sum(weight)), 1.0)
    covariance = sum_over_actors(jnp.einsum("cts,ctso,ctsp->op", weight, residual, residual)) / count

    centre = jax.vmap(centres)(samples.z, weight)
    spread = jnp.einsum("cts,ctsi->i", weight, (samples.z - centre[:, :, None]) ** 2)
    scale = jnp.maximum(jnp.sqrt(sum_over_actors(spread) / count), LEAST_SCALE)
    prior = LinearFit(
        centre,
        shared(centre),
        shared.slope_at(centre),
        jnp.broadcast_to(covariance, (*centre.shape[:2], *covariance.shape)),
    )
    fit_one = functools.partial(linear_fit, strength=strength, window=window)
    found = jax.vmap(fit_one, (0, 0, 0, 0, None))(samples.z, residual, weight, prior, scale)
    seen = jnp.any(weight > 0, axis=-1).astype(jnp.float32)
    return LocalModels(
        centre=centre,
        dynamics=_dynamics(found, num_x, seen),
        reward=_reward(found, concave(shared.curvature[-1]), seen),
        reference=_linearised(policy, params, moments, frame, samples, centre[..., num_x:], actions),
        seen=seen,
    )


def _outputs(samples: Samples) -> Float[Array, "condition time sample output"]:
    """Returns state changes and rewards, concatenated."""
    return jnp.concatenate([samples.after - samples.state, samples.reward[..., None]], axis=-1)


def _rows(leaf: Float[Array, "condition time sample number"]) -> Float[Array, "row number"]:
    return leaf.reshape(-1, leaf.shape[-1])


def clipped_mean(
    mean: Float[Array, "..."], std: Float[Array, "..."], low: Float[Array, "..."], high: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Computes E[clip(a, low, high)] for a ~ N(mean, std^2); bounds may be infinite.

        mean + E[max(low - a, 0)] - E[max(a - high, 0)],   E[max(b, 0)] = m Phi(m / std) + std phi(m / std)

    for b ~ N(m, std^2). The derivative with respect to the mean is the probability that a is within the bounds.
    """

    def excess(beyond: Float[Array, "..."]) -> Float[Array, "..."]:
        within = jnp.where(jnp.isfinite(beyond), beyond, 0.0)
        some = within * norm.cdf(within / std) + std * norm.pdf(within / std)
        return jnp.where(jnp.isfinite(beyond), some, 0.0)

    return mean + excess(low - mean) - excess(mean - high)


def unclipped_mean(
    clipped: Float[Array, "..."], std: Float[Array, "..."], low: Float[Array, "..."], high: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Inverts `clipped_mean`: the mean of the normal distribution whose actions, once clipped, have a given mean.

    The result is at most `BEYOND_BOUNDS` standard deviations outside of the bounds, where hardly any action is inside.
    """
    clipped, std, low, high = jnp.broadcast_arrays(clipped, std, low, high)
    least, most = low - BEYOND_BOUNDS * std, high + BEYOND_BOUNDS * std

    def closer(_: Int[Array, ""], mean: Float[Array, "..."]) -> Float[Array, "..."]:
        inside = norm.cdf((high - mean) / std) - norm.cdf((low - mean) / std)  # the derivative of `clipped_mean`
        error = clipped - clipped_mean(mean, std, low, high)
        return jnp.clip(mean + error / jnp.maximum(inside, LEAST_INSIDE), least, most)

    # Newton's method: outwards from the middle of the bounds the function is concave, so that no step goes too far.
    return jax.lax.fori_loop(0, NEWTON_STEPS, closer, jnp.clip(clipped, low, high))


def _dynamics(found: LinearFit, num_x: int, seen: Float[Array, "condition time"]) -> Dynamics:
    """Returns the dynamics of x_{t+1} - centre_{t+1} in z_t - centre_t; steps without samples lead to the centre."""
    slope = found.slope[..., :num_x, :].at[..., :num_x].add(jnp.eye(num_x))
    state = found.centre[..., :num_x]
    following = jnp.concatenate([state[:, 1:], state[:, -1:]], axis=1)
    offset = state + found.constant[..., :num_x] - following
    return Dynamics(
        seen[..., None, None] * slope,
        seen[..., None] * offset,
        seen[..., None, None] * found.covariance[..., :num_x, :num_x],
    )


def _reward(found: LinearFit, curvature: Float[Array, "z z"], seen: Float[Array, "condition time"]) -> Reward:
    return Reward(
        seen * found.constant[..., -1],
        seen[..., None] * found.slope[..., -1, :],
        seen[..., None, None] * curvature,
    )


def _linearised(
    policy: Policy,
    params: PyTree,
    moments: Moments,
    frame: Moments,
    samples: Samples,
    action: Float[Array, "condition time u"],
    actions: ActionSpace,
) -> Controller:
    """Linearises the policy: means over samples of its actions, their derivatives in the state and its precision.

    Actions are clipped to the action space, as in the simulator. Where the network's output is out of bounds, the
    clipped action hardly depends on the state; with the network's own gain, the model would predict diverging states.
    """
    low, high = map(jnp.asarray, actions.policy_range())

    def mean_action(obs: Float[Array, " obs"]) -> tuple[Array, tuple[Array, Array]]:
        acting = cast(Gaussian, policy.apply(params, normalize(obs, moments)))
        std = jnp.exp(jnp.broadcast_to(acting.log_std, acting.mean.shape))
        mean = clipped_mean(acting.mean, std, low, high)
        return mean, (mean, std)

    rows = samples.obs.reshape(-1, samples.obs.shape[-1])
    slope, (taken, std) = jax.vmap(jax.jacrev(mean_action, has_aux=True))(rows)
    share = samples.weight / jnp.maximum(jnp.sum(samples.weight, axis=2, keepdims=True), 1.0)
    # Steps without samples have no linearisation, but need some finite precision.
    share = jnp.where(jnp.any(samples.weight > 0, axis=2, keepdims=True), share, 1.0 / samples.weight.shape[2])

    def mean_of(each: Float[Array, "row ..."]) -> Float[Array, "condition time ..."]:
        return jnp.einsum("cts,cts...->ct...", share, each.reshape(*samples.weight.shape, *each.shape[1:]))

    precision = mean_of(std**-2)
    return Controller(
        gain=mean_of(slope * frame.std),
        offset=mean_of(taken) - action,
        precision=precision[..., None] * jnp.eye(precision.shape[-1]),
    )
