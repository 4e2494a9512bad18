"""What samples say of a task around the trajectories that they follow: dynamics, reward, and the policy, linearised."""

from __future__ import annotations

import functools
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array, Float, PyTree

from jaxtrpo.algorithms.gps.linear_fit import LinearFit, centres, linear_fit
from jaxtrpo.algorithms.gps.lqr import Controller, Dynamics, Reward
from jaxtrpo.algorithms.gps.quadratic_regression import Quadratic, Sums, Validated, add, concave, sums_of, validated_fit
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.ops.moments import Moments, normalize, weighted_moments
from jaxtrpo.parallel.collectives import sum_over_actors
from jaxtrpo.policies.distributions import Gaussian
from jaxtrpo.policies.networks import Policy
from jaxtrpo.rollout.types import Batch

# Penalties of the shared model. A reward that is a quadratic form wants the least; dynamics with contacts want more,
# since a model that errs in one step is unstable over a hundred.
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
LEAST_SCALE = 1e-3  # of a state or an action that hardly varies, in standard deviations of what was seen first


class Samples(NamedTuple):
    """One actor's part of a batch, by condition. States are standardised, actions as the simulator took them."""

    state: Float[Array, "condition time sample x"]
    action: Float[Array, "condition time sample u"]
    after: Float[Array, "condition time sample x"]  # the state that the step led to
    reward: Float[Array, "condition time sample"]  # with what an early end costs
    weight: Float[Array, "condition time sample"]  # 1 while the episode lasts, else 0
    obs: Float[Array, "condition time sample obs"]  # as the simulator gave it
    return_: Float[Array, "condition sample"]

    @property
    def z(self) -> Float[Array, "condition time sample z"]:
        """States and actions."""
        return jnp.concatenate([self.state, self.action], axis=-1)


class LocalModels(NamedTuple):
    """Of every condition of one actor, around the mean of its samples."""

    centre: Float[Array, "condition time z"]
    dynamics: Dynamics
    reward: Reward
    reference: Controller  # the policy that acted, linearised
    seen: Float[Array, "condition time"]  # 1 where samples were left, else 0


def samples_of(batch: Batch, frame: Moments, samples: int, actions: ActionSpace) -> Samples:
    """Sorts a batch that is one episode of every environment.

    After an early end a sample counts no more, and its rewards are 0. Models go on to the horizon, where they would
    earn what a step usually does, so that this is taken from the reward of the step that ended it.

    Args:
      batch: of one segment, whose neighbouring environments have the same first state.
      frame: moments of observations that states are standardised with.
      samples: environments that have the same first state.
      actions: of the environment.
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
    """The regression that all conditions and the last updates share, without and with the samples of all actors.

    Args:
      samples: of one actor.
      known: what is remembered of the updates before.

    Returns:
      What the samples add, and the fit to them and to what is known.
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
    """Models around the samples of each condition; those of all conditions and the last updates are their prior.

    The prior is one quadratic regression of change of state and reward on state and action, linearised around the mean
    of the samples of each step; `linear_fit` corrects it by them. The curvature of the reward is the shared one,
    without what is not concave.

    Args:
      samples: of one actor's conditions.
      shared: what is the prior of all.
      policy: that acted.
      params: its parameters.
      moments: that its observations were normalised with.
      frame: as in `samples_of`.
      actions: of the environment.
      strength: samples that the prior is worth at each step of a condition.
      window: steps on either side whose samples count as well.
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
    """Changes of state, and the reward."""
    return jnp.concatenate([samples.after - samples.state, samples.reward[..., None]], axis=-1)


def _rows(leaf: Float[Array, "condition time sample number"]) -> Float[Array, "row number"]:
    return leaf.reshape(-1, leaf.shape[-1])


def clipped_mean(
    mean: Float[Array, "..."], std: Float[Array, "..."], low: Float[Array, "..."], high: Float[Array, "..."]
) -> Float[Array, "..."]:
    """E[clip(a, low, high)] of a ~ N(mean, std^2), where ends may be infinite.

        mean + E[max(low - a, 0)] - E[max(a - high, 0)],   E[max(b, 0)] = m Phi(m / std) + std phi(m / std)

    for b ~ N(m, std^2). Its derivative in the mean is the probability that a is within the range.
    """

    def excess(beyond: Float[Array, "..."]) -> Float[Array, "..."]:
        within = jnp.where(jnp.isfinite(beyond), beyond, 0.0)
        some = within * norm.cdf(within / std) + std * norm.pdf(within / std)
        return jnp.where(jnp.isfinite(beyond), some, 0.0)

    return mean + excess(low - mean) - excess(mean - high)


def _dynamics(found: LinearFit, num_x: int, seen: Float[Array, "condition time"]) -> Dynamics:
    """x_{t+1} - centre_{t+1} in terms of z_t - centre_t; a state that nobody was in leads to the centre."""
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
    """The policy around the samples: means over them of its actions, its derivatives in the state and its precision.

    Its actions are those that the simulator takes. Where a network asks for more than there is, what it does hardly
    depends on the state, and a model that believed in the network's own gain would see states run away.
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
    # Where no sample was left nothing is linearised; any precision serves there.
    share = jnp.where(jnp.any(samples.weight > 0, axis=2, keepdims=True), share, 1.0 / samples.weight.shape[2])

    def mean_of(each: Float[Array, "row ..."]) -> Float[Array, "condition time ..."]:
        return jnp.einsum("cts,cts...->ct...", share, each.reshape(*samples.weight.shape, *each.shape[1:]))

    precision = mean_of(std**-2)
    return Controller(
        gain=mean_of(slope * frame.std),
        offset=mean_of(taken) - action,
        precision=precision[..., None] * jnp.eye(precision.shape[-1]),
    )
