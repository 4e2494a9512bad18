"""Proximal policy optimisation, PPO (Schulman et al. 2017)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Num, PyTree

from jaxtrpo.algorithms.actor_critic import actor_critic
from jaxtrpo.algorithms.algorithm import Algorithm, Learner, Spec
from jaxtrpo.algorithms.policy_gradient import outputs
from jaxtrpo.algorithms.shared_torso import VALUE_WEIGHT, require_effect, shared_torso
from jaxtrpo.algorithms.surrogates import Samples, objective_of
from jaxtrpo.config.checks import require_not_negative, require_positive, require_share, require_whole
from jaxtrpo.config.specs import spec_string_of
from jaxtrpo.ops.costs import of_forward_pass
from jaxtrpo.ops.descent import Point, Total, clip_by_norm, descent
from jaxtrpo.ops.keys import numbered_key
from jaxtrpo.ops.minibatches import parts_for, pass_over_minibatches
from jaxtrpo.ops.segments import filled_up, map_segments
from jaxtrpo.ops.tree import all_finite
from jaxtrpo.parallel.collectives import Work, after, num_actors, sum_over_actors
from jaxtrpo.policies.distributions import Comparable, entropy, kl_divergence, log_prob
from jaxtrpo.policies.masking import plain_observations
from jaxtrpo.policies.recurrence import entry, from_rows, gather_inputs, one_axis_of_steps, rows_of, to_rows


class _Rows(NamedTuple):
    """Samples of one actor or of all: a row is a step or, for a policy with memory, a stretch of an environment."""

    obs: PyTree  # input of the policy
    action: Num[Array, "row ... action"]
    advantage: Float[Array, "row ..."]
    weight: Float[Array, "row ..."]
    old: Comparable  # distributions that the actions were drawn from
    # Targets of a value head, and what it predicted when acting, in its units [row, ...]; None without one.
    target: Any = None
    old_value: Any = None


class _Fit(NamedTuple):
    """State of the loop over epochs."""

    point: Point
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
    value_weight: float = VALUE_WEIGHT,
    value_clip: float | None = None,
) -> Algorithm:
    """Proximal policy optimisation (PPO): epochs of shuffled minibatches on the clipped surrogate.

    Unless the policy is `shared`, policy and critic have separate networks, so their fits are independent: with several
    actors, one fits the policy while another fits the critic, each to the samples of all actors. Gradients of
    convolutions are long enough that all actors share each of them instead.

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
      max_gradient_norm: maximum norm, to which the policy gradient is clipped; with a shared policy, the gradient of
        both losses.
      value_weight: coefficient of the value loss of a shared policy, the mean squared error of normalised returns; for
        other policies it must keep its default.
      value_clip: clipping range of the value loss of a shared policy: the larger of the error and of that of a value
        no further than this from the one predicted when acting, in standard deviations of the returns. None turns it
        off.

    Raises:
      ValueError: a setting is out of range; the message names it.
    """
    spec_string = spec_string_of(ppo, locals())
    require_positive(clip=clip, learning_rate=learning_rate, max_gradient_norm=max_gradient_norm)
    require_whole(1, epochs=epochs, minibatch_size=minibatch_size)
    require_share(gae_lambda=gae_lambda)
    require_not_negative(entropy_bonus=entropy_bonus, minibatch_per_env=minibatch_per_env, value_weight=value_weight)
    if value_clip is not None:
        require_positive(value_clip=value_clip)
    if kl_stop is not None:
        require_positive(kl_stop=kl_stop)

    def optimizer(total: Total) -> optax.GradientTransformation:
        return optax.chain(clip_by_norm(max_gradient_norm, total), optax.scale_by_adam(eps=1e-5))

    def make(spec: Spec) -> Learner:
        policy, in_sequence = spec.policy, spec.policy.recurrence is not None
        require_effect("ppo", spec, value_weight=(value_weight, VALUE_WEIGHT), value_clip=(value_clip, None))
        if minibatch_size > spec.steps_per_update:
            raise ValueError(
                f"minibatch_size={minibatch_size} of ppo must be at most steps_per_update={spec.steps_per_update}"
            )

        def gain(new: Comparable, rows: _Rows, clip: Float[Array, ""]) -> Float[Array, "row ..."]:
            if spec.surrogate is None:
                return clipped_surrogate(new, rows, clip)
            samples = Samples(plain_observations(rows.obs), rows.action, rows.advantage, rows.old)
            if in_sequence:
                new, samples = one_axis_of_steps((new, samples))
            return objective_of(spec.surrogate, new, samples).reshape(rows.advantage.shape)

        def step(params, optimizer_state, action, found, hyperparameters, key):
            first_params, unravel = ravel_pytree(params)
            targets = found.targets
            old, old_value = map_segments(
                lambda i: outputs(policy, params, entry(targets.obs, i)), targets.num_segments, targets.weight.shape[0]
            )
            # Rows without a step have weight 0, but 0 times NaN is NaN, and parameters of 0 may make NaN.
            old, action = jax.tree.map(lambda leaf: filled_up(leaf, targets.num_segments), (old, action))
            dealt = _Rows(targets.obs, action, found.advantage, targets.weight, old)
            if old_value is not None:
                dealt = dealt._replace(target=targets.value, old_value=old_value)
            rows = to_rows(gather_inputs(dealt), sequences=in_sequence)
            num_rows = targets.num_segments * (len(rows.weight) // targets.weight.shape[0])
            size = max(minibatch_size, round(minibatch_per_env * targets.weight.shape[2] * num_actors()))
            size = rows_of(size, rows.weight)
            parts = parts_for(policy.multiply_adds, params, size * (rows.weight.size // len(rows.weight)))
            steps = descent(optimizer, parts, len(first_params))
            # Actors that share gradients share what is measured at the end, too.
            measured = to_rows(dealt, sequences=in_sequence) if parts.shared else rows
            samples = from_rows(measured, sequences=in_sequence)

            def one_step(point: Point, minibatch: _Rows) -> Point:
                count = jnp.maximum(jnp.sum(minibatch.weight), 1.0)

                def loss(candidate: Array, rows: _Rows) -> Float[Array, ""]:
                    rows = from_rows(rows, sequences=in_sequence)
                    new, value = outputs(policy, unravel(candidate), rows.obs)
                    each = gain(new, rows, hyperparameters["clip"]) + entropy_bonus * entropy(new)
                    if value is not None:
                        each = each - value_weight * value_loss(value, rows.target, rows.old_value, value_clip)
                    return -jnp.sum(rows.weight * each) / count

                return steps.step(point, loss, minibatch, -hyperparameters["learning_rate"])

            def one_pass(fit: _Fit) -> _Fit:
                point = pass_over_minibatches(one_step, fit.point, rows, num_rows, numbered_key(key, fit.epochs), size)
                kl = mean_kl(steps.params(point)) if kl_stop is not None else fit.kl
                return _Fit(point, fit.epochs + 1, kl)

            def unfinished(fit: _Fit) -> Bool[Array, ""]:
                go_on = fit.epochs < epochs
                return go_on if kl_stop is None else go_on & (fit.kl <= float(kl_stop))

            def over_steps(values: Float[Array, "..."] | Bool[Array, "..."]) -> Float[Array, ""]:
                sums = jnp.sum(samples.weight * values), jnp.sum(samples.weight)
                total, count = sum_over_actors(sums) if parts.shared else sums
                return total / jnp.maximum(count, 1.0)

            def mean_kl(candidate: Array) -> Float[Array, ""]:
                return over_steps(kl_divergence(samples.old, outputs(policy, unravel(candidate), samples.obs)[0]))

            start = _Fit(steps.start(first_params, optimizer_state), jnp.int32(0), jnp.zeros(()))
            with jax.named_scope("passes"):
                fit = jax.lax.while_loop(unfinished, one_pass, start)
            last = steps.end(fit.point)
            healthy = all_finite(last)
            new_params, memory = optax.tree.where(healthy, last, (first_params, optimizer_state))
            samples = after(new_params, samples)  # sums must not overtake those of gradients
            new, _ = outputs(policy, unravel(new_params), samples.obs)
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
            steps, of_adam = max(samples // minibatch_size, 1), 15.0 * optax.tree.size(params)
            flops = epochs * (6.0 * of_forward_pass(policy.multiply_adds, params) * samples + of_adam * steps)
            return Work(flops, parts_for(policy.multiply_adds, params, minibatch_size).shared)

        def no_memory(params: PyTree) -> optax.OptState:
            return optimizer(lambda value: value).init(ravel_pytree(params)[0])

        if policy.value_head is not None:
            return shared_torso(spec, step=step, no_memory=no_memory, gae_lambda=gae_lambda)
        return actor_critic(
            spec,
            step=step,
            no_memory=no_memory,
            work=work,
            gae_lambda=gae_lambda,
            learning_rate=learning_rate,
        )

    starts = {"clip": clip, "learning_rate": learning_rate, "steps_per_update": 2048}
    critic = (
        f"mlp(epochs={epochs}, minibatch_size={minibatch_size}, minibatch_per_env={minibatch_per_env}, "
        f"learning_rate={learning_rate})"
    )
    return Algorithm(spec_string, starts, make, critic=critic, uses_surrogate=True, refuses_shared=None)


def clipped_surrogate(new: Comparable, rows: _Rows, clip: Float[Array, ""]) -> Float[Array, "row ..."]:
    """Computes min(r A, clip(r, 1 - clip, 1 + clip) A), r = pi_new(a|s) / pi_old(a|s) (Schulman et al. 2017, eq. 7)."""
    ratio = jnp.exp(log_prob(new, rows.action) - log_prob(rows.old, rows.action))
    return jnp.minimum(ratio * rows.advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * rows.advantage)


def value_loss(
    value: Float[Array, "row ..."],
    target: Float[Array, "row ..."],
    old: Float[Array, "row ..."],
    value_clip: float | None,
) -> Float[Array, "row ..."]:
    """Computes (V - R)^2 or, with clipping, max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2).

    The second is the value loss of Schulman's implementation (`ppo2` of OpenAI Baselines, Dhariwal et al. 2017).
    """
    error = (value - target) ** 2
    if value_clip is None:
        return error
    near = old + jnp.clip(value - old, -float(value_clip), float(value_clip))
    return jnp.maximum(error, (near - target) ** 2)
