"""Guided policy search in the form of mirror descent (Montgomery & Levine 2016)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxtrpo.algorithms.actor_critic import no_observations
from jaxtrpo.algorithms.algorithm import Algorithm, Info, Learner, Spec, WholeEpisodes, require_surrogate_unset
from jaxtrpo.algorithms.gps.bounded_lqr import BoundedInfo, bounded_response
from jaxtrpo.algorithms.gps.imitation import Examples, imitate
from jaxtrpo.algorithms.gps.local_models import LocalModels, Samples, local_models, samples_of, shared_model
from jaxtrpo.algorithms.gps.lqr import Controller
from jaxtrpo.algorithms.gps.quadratic_regression import Sums, add, no_sums
from jaxtrpo.config.checks import require_number, require_positive, require_whole
from jaxtrpo.config.specs import call_in_words
from jaxtrpo.ops.moments import Moments, merge, normalize, weighted_moments
from jaxtrpo.ops.tree import all_finite
from jaxtrpo.parallel.collectives import by_one, gather_envs, num_actors, sum_over_actors
from jaxtrpo.policies.distributions import Gaussian, entropy, kl_divergence
from jaxtrpo.rollout.types import Batch, Hyperparameters

LEAST_SAMPLES = 2  # of a condition: with one there is nothing that its mean differs from


class GPSState(NamedTuple):
    """What is learned. Every actor has the same."""

    policy: PyTree
    obs_moments: Moments
    frame: Moments  # those of the first batch, which states of the models are standardised with ever after
    sums: Sums  # of the model that all conditions and the last updates share
    optimizer: optax.OptState
    return_: Float[Array, ""]  # mean over the samples of the update before; NaN before the first
    predicted_gain: Float[Array, ""]  # of the step after it


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
    """Guided policy search: local controllers found by optimal control, and a network that learns to do what all do.

    Episodes begin in a few first states, again and again. Around the samples of each the dynamics are fitted as
    time-varying linear-Gaussian and the reward as quadratic, and maximum-entropy LQR finds the controller with the
    largest return whose KL to the policy, linearised there, is bounded. The network then minimises its own KL to these
    controllers (mirror descent: the step to them descends, the network projects). Environments need not be
    differentiable; actions are real numbers. Returns are not discounted: the horizon bounds them.

    Args:
      conditions: first states, a multiple of the actors.
      samples: episodes from each in an update.
      horizon: steps of an episode; the environment's time limit if not given. Where an episode ends before, what
        follows earns 0, and the environment's steps until the others are done count for nothing.
      max_kl: trust region of the first updates: KL of a controller to the policy, nats, mean over steps.
      learning_rate: of Adam, for the network; it falls to 0 within each update.
      imitation_steps: of Adam in an update.
      minibatch_size: samples in one of them, about.
      model_memory: updates that the model shared by all conditions remembers: those before fade.
      prior_samples: samples that it counts as, where samples of one step of a condition correct it.
      window: steps before and after one whose samples count for it as well.

    Raises:
      ValueError: a setting is out of bounds; one sentence that names it.
    """
    words = call_in_words(gps, locals())
    require_whole(1, conditions=conditions, imitation_steps=imitation_steps, minibatch_size=minibatch_size)
    require_whole(0, window=window)
    if horizon is not None:
        require_whole(2, horizon=horizon)
    require_positive(max_kl=max_kl, learning_rate=learning_rate, prior_samples=prior_samples)
    require_whole(1, samples=samples)
    if samples < LEAST_SAMPLES:
        raise ValueError(f"samples={samples}: dynamics cannot be fitted to fewer than {LEAST_SAMPLES} of a condition")
    require_number("at least 1", lambda value: value >= 1, model_memory=model_memory)
    optimizer = optax.scale_by_adam()

    def make(spec: Spec) -> Learner:
        require_surrogate_unset(spec, "gps")
        _require_gaussian(spec)
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
            fresh = weighted_moments(batch.steps.obs, weight, sum_over_actors)
            first = learner.frame.count == 0
            frame = optax.tree.where(first, fresh, learner.frame)
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
            # The network that will act sees observations through the moments that it will act with.
            moments = merge(learner.obs_moments, fresh) if spec.normalize_observations else learner.obs_moments
            # A gradient step takes no longer than a meeting would, so that everyone takes all of them.
            examples = gather_envs(examples_of(controllers, models, found, moments), axis=1)

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

            params, memory, left = by_one(learn_to_imitate)()
            healthy = all_finite((params, memory))
            params, memory = optax.tree.where(healthy, (params, memory), (learner.policy, learner.optimizer))

            mean_return = _mean_over_actors(jnp.mean(found.return_))
            predicted_gain = _mean_over_actors(jnp.mean(search.predicted_gain))
            old = policy.apply(learner.policy, normalize(batch.steps.obs, learner.obs_moments))
            new = policy.apply(params, normalize(batch.steps.obs, moments))
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
            return GPSState(
                params, moments, frame, add(remembered, fresh_sums), memory, mean_return, predicted_gain
            ), info

        return Learner(init, learn)

    starts = {"max_kl": max_kl, "learning_rate": learning_rate, "steps_per_update": conditions * samples}
    return Algorithm(
        words,
        starts,
        make,
        adapt="model_accuracy",
        critic="none",
        num_envs=conditions * samples,
        episodes=WholeEpisodes(conditions, samples, horizon),
    )


def controllers_of(models: LocalModels, found: Samples, max_kl: Float[Array, ""]) -> tuple[Controller, BoundedInfo]:
    """The best controller of each condition within the bound."""
    unit = weighted_moments(found.reward, found.weight, sum_over_actors).std
    bound = max_kl * jnp.sum(models.seen, axis=1)
    return jax.vmap(bounded_response, (0, 0, 0, 0, None))(models.dynamics, models.reward, models.reference, bound, unit)


def examples_of(controllers: Controller, models: LocalModels, found: Samples, moments: Moments) -> Examples:
    """What the controllers would have done in the place of the policy."""
    num_x = found.state.shape[-1]
    away = found.state - models.centre[:, :, None, :num_x]
    mean = jnp.einsum("ctij,ctsj->ctsi", controllers.gain, away)
    mean = mean + (controllers.offset + models.centre[..., num_x:])[:, :, None]
    of_condition = Examples(normalize(found.obs, moments), mean, controllers.precision, found.weight)
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), of_condition)


def _mean_over_actors(value: Array) -> Array:
    """Of a mean over as many on each."""
    return sum_over_actors(value) / num_actors()


def _require_gaussian(spec: Spec) -> None:
    """Refuses distributions that no linear-Gaussian controller is like; raises ValueError, one sentence."""
    if spec.actions.counts:
        raise ValueError("algorithm: gps needs actions that are real numbers, and these are choices")
    made = jax.eval_shape(
        lambda key: spec.policy.apply(spec.policy.init(key), jnp.zeros((1, spec.observation_size))),
        jax.random.PRNGKey(0),
    )
    if not isinstance(made, Gaussian):
        raise ValueError(f"policy: gps needs Gaussian distributions of actions, and these are {type(made).__name__}")
