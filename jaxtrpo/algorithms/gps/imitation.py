"""Supervised learning of one policy network from many linear-Gaussian controllers."""

from __future__ import annotations

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, UInt32

from jaxtrpo.algorithms.gps.definite import inverse
from jaxtrpo.ops.keys import numbered_key
from jaxtrpo.policies.distributions import Gaussian
from jaxtrpo.policies.networks import Policy


class Examples(NamedTuple):
    """Action distributions of the controllers in the states of their samples."""

    obs: Float[Array, "time condition sample obs"]  # normalised
    mean: Float[Array, "time condition sample u"]
    precision: Float[Array, "time condition u u"]
    weight: Float[Array, "time condition sample"]  # 1 for a sample that counts, else 0


def divergence(acting: Gaussian, examples: Examples) -> Float[Array, "time condition sample"]:
    """Computes KL(policy || controller), nats.

        1/2 [(m - m')^T P (m - m') + tr(P S) - dim u - log det P - log det S]

    with mean m and covariance S of the policy, mean m' and precision P of the controller. Errors of the mean are
    weighted by the controller's precision, so they may be large where it is indifferent (Montgomery & Levine 2016,
    section 3.2).
    """
    away = acting.mean - examples.mean
    log_std = jnp.broadcast_to(acting.log_std, away.shape)
    diagonal = jnp.diagonal(examples.precision, axis1=-2, axis2=-1)[:, :, None]
    by_mean = jnp.einsum("tcsi,tcij,tcsj->tcs", away, examples.precision, away)
    by_noise = jnp.sum(diagonal * jnp.exp(2 * log_std) - 1 - 2 * log_std, axis=-1)
    return 0.5 * (by_mean + by_noise - inverse(examples.precision).log_det[..., None])


def imitate(
    policy: Policy,
    params: PyTree,
    memory: optax.OptState,
    examples: Examples,
    key: PRNGKeyArray | UInt32[Array, "2"],
    optimizer: optax.GradientTransformation,
    learning_rate: Float[Array, ""],
    *,
    steps: int,
    minibatch_size: int,
) -> tuple[PyTree, optax.OptState, Float[Array, ""]]:
    """Minimises the mean KL of the policy to the controllers on their samples.

    A minibatch holds the samples of all conditions at a few time steps. A time step is drawn with a probability in
    proportion to its number of samples, one from each of several equal parts of all samples. The learning rate decays
    linearly to 0.

    Args:
      policy: policy to train.
      params: its initial parameters.
      memory: optimiser state.
      examples: examples of all conditions.
      key: PRNG key for drawing time steps.
      optimizer: optimiser for the parameters as one flat vector.
      learning_rate: initial learning rate.
      steps: number of optimiser steps.
      minibatch_size: approximate number of examples per step.

    Returns:
      Parameters, optimiser state and the remaining mean KL to the controllers.
    """
    first, unravel = ravel_pytree(params)
    time, conditions, samples = examples.weight.shape
    moments = min(max(minibatch_size // (conditions * samples), 1), time)

    counts = jnp.sum(examples.weight, axis=(1, 2))  # samples at each time step
    until = jnp.cumsum(counts)

    def total(candidate: Array, some: Examples, each: Float[Array, "..."]) -> Float[Array, ""]:
        """Sums the divergences at some time steps, each of them divided by a number of samples."""
        acting = cast(Gaussian, policy.apply(unravel(candidate), some.obs))
        return jnp.sum(some.weight * divergence(acting, some) / each)

    def step(number: Int[Array, ""], carry: tuple[Array, optax.OptState]) -> tuple[Array, optax.OptState]:
        candidate, memory = carry
        chance = jax.random.uniform(numbered_key(key, number), (moments,))
        share = (jnp.arange(moments) + chance) / moments
        chosen = jnp.minimum(jnp.searchsorted(until, share * until[-1], side="right"), time - 1)
        some = jax.tree.map(lambda leaf: leaf[chosen], examples)
        # Of a time step that is drawn in proportion to its samples, the mean over them is an unbiased estimate.
        each = jnp.maximum(counts[chosen], 1.0)[:, None, None]
        gradient = jax.grad(total)(candidate, some, each) / moments
        direction, memory = optimizer.update(gradient, memory)
        rate = learning_rate * (1 - number / steps)
        return candidate - rate * jnp.asarray(direction), memory

    last, memory = jax.lax.fori_loop(0, steps, step, (first, memory))
    return unravel(last), memory, total(last, examples, jnp.maximum(until[-1], 1.0))
