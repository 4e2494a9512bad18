"""Mirror descent guided policy search (Montgomery & Levine 2016)."""

from __future__ import annotations

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxtrpo.algorithms.actor_critic import no_observations
from jaxtrpo.algorithms.algorithm import Algorithm, Info, Learner, Spec, WholeEpisodes, require_plain_networks
from jaxtrpo.algorithms.gps.bounded_lqr import BoundedInfo, bounded_response
from jaxtrpo.algorithms.gps.imitation import Examples, imitate
from jaxtrpo.algorithms.gps.local_models import (
    LocalModels,
    Samples,
    local_models,
    samples_of,
    shared_model,
    unclipped_mean,
)
from jaxtrpo.algorithms.gps.lqr import Controller
from jaxtrpo.algorithms.gps.quadratic_regression import Sums, add, no_sums
from jaxtrpo.config.checks import require_number, require_positive, require_whole
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.critics.critic import is_network
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.ops.moments import Moments, merge, normalize, observation_moments, weighted_moments
from jaxtrpo.ops.tree import all_finite, if_finite
from jaxtrpo.parallel.collectives import gather_envs, num_actors, sum_over_actors, without_collectives
from jaxtrpo.policies.distributions import Distribution, Gaussian, entropy, kl_divergence
from jaxtrpo.policies.making import distribution_of
from jaxtrpo.rollout.types import Batch, Hyperparameters

LEAST_SAMPLES = 2  # per condition: a single sample does not deviate from its mean


class GPSState(NamedTuple):
    """Learner state, equal on every actor."""

    policy: PyTree
    obs_moments: Moments
    frame: Moments  # moments of the first batch, with which the states of all models are standardised
    sums: Sums  # of the regression shared by all conditions and the last updates
    optimizer: optax.OptState
    return_: Float[Array, ""]  # mean return of the previous update; NaN before the first
    predicted_gain: Float[Array, ""]  # of the step that followed it


MOST_NEIGHBOURS = 1_000  # time steps on either side


def gps(
    *,
    conditions: int = 8,
    samples: int = 5,
    horizon: int | None = None,
    max_kl: float = 0.5,
    learning_rate: float = 3e-3,
    imitation_steps: int = 1000,
    minibatch_size: int = 256,
    model_memory: float = 3.0,
    prior_samples: float = 100.0,
    window: int = 2,
) -> Algorithm:
    """Guided policy search (GPS): optimal control on fitted local models, imitated by a policy network.

    All episodes start from a small set of initial states (conditions). For each condition, dynamics are fitted as
    time-varying linear-Gaussian and rewards as quadratic around the samples, and maximum-entropy LQR finds the
    controller with the largest return whose KL from the linearised policy is bounded. The network then minimises its
    own KL to these controllers: mirror descent, in which the controllers are the descent step and the network is the
    projection. Environments need not be differentiable, but actions must be continuous. Returns are undiscounted over
    a finite horizon.

    Args:
      conditions: number of initial states; must be a multiple of the number of actors.
      samples: episodes per condition and update.
      horizon: steps per episode; None uses the environment's time limit. If an episode terminates earlier, its
        remaining rewards count as 0, and the steps its environment makes until the others finish are ignored.
      max_kl: initial trust region: largest KL of a controller from the policy, nats, mean over steps.
      learning_rate: learning rate of Adam for the network, decaying to 0 within each update.
      imitation_steps: Adam steps per update.
      minibatch_size: approximate number of samples per Adam step.
      model_memory: number of updates over which the model shared by all conditions is fitted; older ones fade.
      prior_samples: weight of the shared model, as a number of samples, against the samples of a single time step of
        one condition.
      window: number of neighbouring time steps on either side whose samples also count for a step.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    spec_string = spec_string_of(gps, locals())
    require_whole(1, conditions=conditions, imitation_steps=imitation_steps, minibatch_size=minibatch_size)
    require_whole(0, MOST_NEIGHBOURS, window=window)
    if horizon is not None:
        require_whole(2, horizon=horizon)
    require_positive(max_kl=max_kl, learning_rate=learning_rate, prior_samples=prior_samples)
    require_whole(1, samples=samples)
    if samples < LEAST_SAMPLES:
        raise ValueError(f"samples={samples} must be at least {LEAST_SAMPLES} per condition for gps to fit dynamics")
    require_number("at least 1", lambda value: value >= 1, model_memory=model_memory)
    optimizer = optax.scale_by_adam()

    def make(spec: Spec) -> Learner:
        require_plain_networks(spec, "gps")
        _require_gaussian(spec)
        if is_network(spec.critic):
            raise ValueError("critic: gps learns no values; use critic=none")
        policy = spec.policy

        def init(for_policy: PRNGKeyArray, for_critic: PRNGKeyArray) -> GPSState:
            params = policy.init(for_policy)
            size = spec.observation_size + spec.actions.size
            return GPSState(
                policy=params,
                obs_moments=no_observations(spec),
                frame=no_observations(spec),
                sums=no_sums(size, spec.observation_size + 1),
                optimizer=optimizer.init(ravel_pytree(params)[0]),
                return_=jnp.float32(jnp.nan),
                predicted_gain=jnp.float32(jnp.nan),
            )

        def learn(
            learner: GPSState, batch: Batch, hyperparameters: Hyperparameters, key: PRNGKeyArray
        ) -> tuple[GPSState, Info]:
            weight = (~batch.steps.invalid).astype(jnp.float32)
            first = learner.frame.count == 0
            frame = weighted_moments(batch.steps.obs, weight, sum_over_actors)
            frame = optax.tree.where(first, frame, learner.frame)
            found = samples_of(batch, frame, samples, spec.actions)
            remembered = jax.tree.map(lambda leaf: (1 - 1 / model_memory) * leaf, learner.sums)
            fresh_sums, shared = shared_model(found, remembered)
            models = local_models(
                found,
                shared.quadratic,
                policy,
                learner.policy,
                learner.obs_moments,
                frame,
                spec.actions,
                strength=prior_samples,
                window=window,
            )
            controllers, search = controllers_of(models, found, hyperparameters["max_kl"])
            # The network imitates under the new moments, with which it will act.
            moments = learner.obs_moments
            if spec.normalize_observations:
                moments = merge(moments, observation_moments(batch.steps.obs, weight, sum_over_actors))
            # A gradient step takes no longer than a collective, so every actor computes all of them.
            examples = gather_envs(examples_of(controllers, models, found, moments, spec.actions), axis=1)

            def learn_to_imitate() -> tuple[PyTree, optax.OptState, Float[Array, ""]]:
                return imitate(
                    policy,
                    learner.policy,
                    learner.optimizer,
                    examples,
                    key,
                    optimizer,
                    hyperparameters["learning_rate"],
                    steps=imitation_steps,
                    minibatch_size=minibatch_size,
                )

            params, memory, left = without_collectives(learn_to_imitate)()
            healthy = all_finite((params, memory))
            params, memory = optax.tree.where(healthy, (params, memory), (learner.policy, learner.optimizer))

            mean_return = _mean_over_actors(jnp.mean(found.return_))
            predicted_gain = _mean_over_actors(jnp.mean(search.predicted_gain))
            old = cast(Gaussian, policy.apply(learner.policy, normalize(batch.steps.obs, learner.obs_moments)))
            new = cast(Gaussian, policy.apply(params, normalize(batch.steps.obs, moments)))
            count = sum_over_actors(jnp.sum(weight))
            info = {
                **jax.tree.map(_mean_over_actors, old.summary()),
                "entropy": sum_over_actors(jnp.sum(weight * entropy(old))) / count,
                "kl": sum_over_actors(jnp.sum(weight * kl_divergence(old, new))) / count,
                "local_kl": sum_over_actors(jnp.sum(search.kl)) / sum_over_actors(jnp.sum(models.seen)),
                "imitation_kl": left,
                "predicted_gain": predicted_gain,
                "previous_predicted_gain": learner.predicted_gain,
                "actual_gain": mean_return - learner.return_,
                "unsolved_conditions": sum_over_actors(jnp.sum(~search.found)),
                "indefinite_trials": sum_over_actors(jnp.sum(search.indefinite)),
                "accepted": healthy,
                "dynamics_explained_variance": 1 - jnp.median(shared.unexplained[:-1]),
                "reward_explained_variance": 1 - shared.unexplained[-1],
            }
            sums = if_finite(add(remembered, fresh_sums), remembered)  # products of four numbers may overflow
            return GPSState(params, moments, frame, sums, memory, mean_return, predicted_gain), info

        return Learner(init, learn)

    starts = {"max_kl": max_kl, "learning_rate": learning_rate, "steps_per_update": conditions * samples}
    return Algorithm(
        spec_string,
        starts,
        make,
        adapt="model_accuracy",
        critic="none",
        num_envs=conditions * samples,
        episodes=WholeEpisodes(conditions, samples, horizon),
        distributions=Distribution,
        refuses_shared="it learns no values",
    )


def controllers_of(models: LocalModels, found: Samples, max_kl: Float[Array, ""]) -> tuple[Controller, BoundedInfo]:
    """Finds the best controller of each condition within the KL bound."""
    unit = weighted_moments(found.reward, found.weight, sum_over_actors).std
    bound = max_kl * jnp.sum(models.seen, axis=1)
    return jax.vmap(bounded_response, (0, 0, 0, 0, None))(models.dynamics, models.reward, models.reference, bound, unit)


def examples_of(
    controllers: Controller, models: LocalModels, found: Samples, moments: Moments, actions: ActionSpace
) -> Examples:
    """Returns the actions that the controllers would have taken in the states of the samples.

    Controllers, like the linearised policy, give the mean of clipped actions; the network learns the mean of those that
    are clipped. If it learned the former, it would move towards the middle of the bounds in every update, also where
    the controllers are the policy itself.
    """
    num_x = found.state.shape[-1]
    low, high = map(jnp.asarray, actions.policy_range())
    away = found.state - models.centre[:, :, None, :num_x]
    mean = jnp.einsum("ctij,ctsj->ctsi", controllers.gain, away)
    mean = mean + (controllers.offset + models.centre[..., num_x:])[:, :, None]
    std = jnp.diagonal(controllers.precision, axis1=-2, axis2=-1)[:, :, None] ** -0.5
    mean = unclipped_mean(mean, std, low, high)
    of_condition = Examples(normalize(found.obs, moments), mean, controllers.precision, found.weight)
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), of_condition)


def _mean_over_actors(value: Array) -> Array:
    """Averages a value over actors, all of which hold equally many samples."""
    return sum_over_actors(value) / num_actors()


def _require_gaussian(spec: Spec) -> None:
    """Raises ValueError unless the policy is Gaussian, as the controllers are."""
    if spec.actions.counts:
        raise ValueError("algorithm: gps needs continuous actions, but these are discrete; use trpo or ppo")
    made = distribution_of(spec.policy, spec.observations, spec.actions)
    if not isinstance(made, Gaussian):
        raise ValueError(f"policy: gps needs a Gaussian distribution of actions, not {type(made).__name__}; use mlp")
