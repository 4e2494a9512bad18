"""A network that learns to do what many linear-Gaussian controllers do, each around its own trajectory."""

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
    """What controllers would do where their samples were."""

    obs: Float[Array, "time condition sample obs"]  # normalised
    mean: Float[Array, "time condition sample u"]
    precision: Float[Array, "time condition u u"]
    weight: Float[Array, "time condition sample"]  # 0 for one that does not count, else 1


def divergence(acting: Gaussian, examples: Examples) -> Float[Array, "time condition sample"]:
    """KL(policy || controller), nats.

        1/2 [(m - m')^T P (m - m') + tr(P S) - dim u - log det P - log det S]

    with m and S of the policy, m' and P of the controller. The errors of the mean are weighted by the controller's
    precision: they may be large where it does not care (Montgomery & Levine 2016, section 3.2).
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

    A minibatch is the samples of all conditions at some moments, one from each of equal stretches of the horizon. The
    learning rate falls to 0.

    Args:
      policy: what learns.
      params: where it starts.
      memory: of the optimiser.
      examples: of all conditions.
      key: of the moments.
      optimizer: of parameters as one vector.
      learning_rate: at first.
      steps: of the optimiser.
      minibatch_size: examples in one of them, about.

    Returns:
      Parameters, memory and the mean KL to the controllers that is left.
    """
    first, unravel = ravel_pytree(params)
    time, conditions, samples = examples.weight.shape
    moments = min(max(minibatch_size // (conditions * samples), 1), time)

    def total(candidate: Array, some: Examples) -> Float[Array, ""]:
        acting = cast(Gaussian, policy.apply(unravel(candidate), some.obs))
        return jnp.sum(some.weight * divergence(acting, some))

    def mean_over(value: Array, some: Examples) -> Array:
        return value / jnp.maximum(jnp.sum(some.weight), 1.0)

    def step(number: Int[Array, ""], carry: tuple[Array, optax.OptState]) -> tuple[Array, optax.OptState]:
        candidate, memory = carry
        chance = jax.random.uniform(numbered_key(key, number), (moments,))
        chosen = ((jnp.arange(moments) + chance) * (time / moments)).astype(jnp.int32)
        some = jax.tree.map(lambda leaf: leaf[jnp.minimum(chosen, time - 1)], examples)
        gradient = mean_over(jax.grad(total)(candidate, some), some)
        direction, memory = optimizer.update(gradient, memory)
        rate = learning_rate * (1 - number / steps)
        return candidate - rate * jnp.asarray(direction), memory

    last, memory = jax.lax.fori_loop(0, steps, step, (first, memory))
    return unravel(last), memory, mean_over(total(last, examples), examples)
