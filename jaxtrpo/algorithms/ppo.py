"""Proximal policy optimisation, PPO (Schulman et al. 2017)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Num, PyTree

from jaxtrpo.algorithms.actor_critic import actor_critic
from jaxtrpo.algorithms.algorithm import Algorithm, Learner, Spec
from jaxtrpo.algorithms.surrogates import Samples
from jaxtrpo.config.checks import require_not_negative, require_positive, require_share, require_whole
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.ops.keys import numbered_key
from jaxtrpo.ops.minibatches import pass_over_minibatches
from jaxtrpo.ops.segments import map_segments
from jaxtrpo.ops.tree import all_finite
from jaxtrpo.parallel.collectives import Work, num_actors
from jaxtrpo.policies.distributions import Distribution, entropy, kl_divergence, log_prob
from jaxtrpo.policies.masking import plain_observations
from jaxtrpo.policies.recurrence import entry, from_rows, gather_inputs, rows_of, to_rows


class _Rows(NamedTuple):
    """Samples of all actors: one per row or, for a policy with memory, one stretch of an environment per row."""

    obs: PyTree  # input of the policy
    action: Num[Array, "row ... action"]
    advantage: Float[Array, "row ..."]
    weight: Float[Array, "row ..."]
    old: Distribution  # distributions that the actions were drawn from


class _Fit(NamedTuple):
    """State of the loop over epochs."""

    params: Float[Array, " parameter"]
    optimizer: optax.OptState
    epochs: Int[Array, ""]
    kl: Float[Array, ""]  # mean KL from the policy that acted, nats


def ppo(
    *,
    clip: float = 0.2,
    learning_rate: float = 3e-4,
    epochs: int = 10,
    minibatch_size: int = 64,
    minibatch_per_env: float = 1.0,
    gae_lambda: float = 0.95,
    entropy_bonus: float = 0.0,
    kl_stop: float | None = None,
    max_gradient_norm: float = 0.5,
) -> Algorithm:
    """Proximal policy optimisation (PPO): epochs of shuffled minibatches on the clipped surrogate.

    Policy and critic have separate networks, so their fits are independent: with several actors, one fits the policy
    while another fits the critic, each to the samples of all actors.

    Args:
      clip: clipping range: the probability ratio is clipped to [1 - clip, 1 + clip].
      learning_rate: learning rate of Adam for the policy, and the default for the critic. When a rule changes it, the
        critic's changes by the same factor.
      epochs: passes over the batch per update.
      minibatch_size: environment steps per gradient step.
      minibatch_per_env: minimum size of a minibatch, in steps per environment, so that thousands of environments do not
        mean thousands of gradient steps in each pass.
      gae_lambda: lambda of GAE, trading bias (0) against variance (1); 1 gives Monte Carlo returns.
      entropy_bonus: coefficient of the entropy bonus, relative to advantages with standard deviation 1.
      kl_stop: early stopping: no further epoch starts once the KL from the policy that acted exceeds this, nats; None
        turns it off.
      max_gradient_norm: maximum norm, to which the policy gradient is clipped.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    spec_string = spec_string_of(ppo, locals())
    require_positive(clip=clip, learning_rate=learning_rate, max_gradient_norm=max_gradient_norm)
    require_whole(1, epochs=epochs, minibatch_size=minibatch_size)
    require_share(gae_lambda=gae_lambda)
    require_not_negative(entropy_bonus=entropy_bonus, minibatch_per_env=minibatch_per_env)
    if kl_stop is not None:
        require_positive(kl_stop=kl_stop)
    optimizer = optax.chain(optax.clip_by_global_norm(max_gradient_norm), optax.scale_by_adam(eps=1e-5))

    def make(spec: Spec) -> Learner:
        policy, in_sequence = spec.policy, spec.policy.recurrence is not None
        if minibatch_size > spec.steps_per_update:
            raise ValueError(
                f"minibatch_size={minibatch_size} of ppo must be at most steps_per_update={spec.steps_per_update}"
            )

        def gain(new: Distribution, rows: _Rows, clip: Float[Array, ""]) -> Float[Array, "row ..."]:
            if spec.surrogate is not None:
                obs = plain_observations(rows.obs)
                return spec.surrogate(new, Samples(obs, rows.action, rows.advantage, rows.old))
            return clipped_surrogate(new, rows, clip)

        def step(params, optimizer_state, action, found, hyperparameters, key):
            first_params, unravel = ravel_pytree(params)
            targets = found.targets
            old = map_segments(
                lambda i: policy.apply(params, entry(targets.obs, i)), targets.num_segments, targets.weight.shape[0]
            )
            dealt = _Rows(targets.obs, action, found.advantage, targets.weight, old)
            rows = to_rows(gather_inputs(dealt), sequences=in_sequence)
            num_rows = targets.num_segments * (len(rows.weight) // targets.weight.shape[0])
            size = max(minibatch_size, round(minibatch_per_env * targets.weight.shape[2] * num_actors()))
            size = rows_of(size, rows.weight)
            samples = from_rows(rows, sequences=in_sequence)

            def loss(candidate: Array, minibatch: _Rows) -> Float[Array, ""]:
                new = policy.apply(unravel(candidate), minibatch.obs)
                each = gain(new, minibatch, hyperparameters["clip"]) + entropy_bonus * entropy(new)
                count = jnp.maximum(jnp.sum(minibatch.weight), 1.0)
                return -jnp.sum(minibatch.weight * each) / count

            def one_step(carry: tuple[Array, PyTree], minibatch: _Rows) -> tuple[Array, PyTree]:
                candidate, state = carry
                gradient = jax.grad(loss)(candidate, from_rows(minibatch, sequences=in_sequence))
                direction, state = optimizer.update(gradient, state, candidate)
                return candidate - hyperparameters["learning_rate"] * direction, state

            def one_pass(fit: _Fit) -> _Fit:
                carry = pass_over_minibatches(
                    one_step, (fit.params, fit.optimizer), rows, num_rows, numbered_key(key, fit.epochs), size
                )
                kl = mean_kl(carry[0]) if kl_stop is not None else fit.kl
                return _Fit(*carry, fit.epochs + 1, kl)

            def unfinished(fit: _Fit) -> Bool[Array, ""]:
                go_on = fit.epochs < epochs
                return go_on if kl_stop is None else go_on & (fit.kl <= kl_stop)

            def over_steps(values: Float[Array, "..."] | Bool[Array, "..."]) -> Float[Array, ""]:
                return jnp.sum(samples.weight * values) / jnp.maximum(jnp.sum(samples.weight), 1.0)

            def mean_kl(candidate: Array) -> Float[Array, ""]:
                return over_steps(kl_divergence(samples.old, policy.apply(unravel(candidate), samples.obs)))

            start = _Fit(first_params, optimizer_state, jnp.int32(0), jnp.zeros(()))
            with jax.named_scope("passes"):
                fit = jax.lax.while_loop(unfinished, one_pass, start)
            healthy = all_finite((fit.params, fit.optimizer))
            new_params, memory = jax.tree.map(
                lambda after, before: jnp.where(healthy, after, before),
                (fit.params, fit.optimizer),
                (first_params, optimizer_state),
            )
            new = policy.apply(unravel(new_params), samples.obs)
            ratio = jnp.exp(log_prob(new, samples.action) - log_prob(samples.old, samples.action))
            info = {
                "kl": over_steps(kl_divergence(samples.old, new)),
                "entropy": over_steps(entropy(samples.old)),
                "clip_fraction": over_steps(jnp.abs(ratio - 1) > hyperparameters["clip"]),
                "epochs": fit.epochs,
                "accepted": healthy,
            }
            return unravel(new_params), memory, info

        def work(params: PyTree, samples: int) -> Work:
            steps = max(samples // minibatch_size, 1)
            flops = epochs * optax.tree.size(params) * (6.0 * samples + 15.0 * steps)  # gradients, and Adam
            return Work(flops, shared=False)

        return actor_critic(
            spec,
            step=step,
            no_memory=lambda params: optimizer.init(ravel_pytree(params)[0]),
            work=work,
            gae_lambda=gae_lambda,
            learning_rate=learning_rate,
        )

    starts = {"clip": clip, "learning_rate": learning_rate, "steps_per_update": 2048}
    critic = (
        f"mlp(epochs={epochs}, minibatch_size={minibatch_size}, minibatch_per_env={minibatch_per_env}, "
        f"learning_rate={learning_rate})"
    )
    return Algorithm(spec_string, starts, make, critic=critic, uses_surrogate=True)


def clipped_surrogate(new: Distribution, rows: _Rows, clip: Float[Array, ""]) -> Float[Array, "row ..."]:
    """Computes min(r A, clip(r, 1 - clip, 1 + clip) A), r = pi_new(a|s) / pi_old(a|s) (Schulman et al. 2017, eq. 7)."""
    ratio = jnp.exp(log_prob(new, rows.action) - log_prob(rows.old, rows.action))
    return jnp.minimum(ratio * rows.advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * rows.advantage)
