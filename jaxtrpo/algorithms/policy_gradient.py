"""The policy gradient, summed over actors, and first-order steps along it with a traced learning rate."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Num, PyTree

from jaxtrpo.algorithms.advantages import Advantages
from jaxtrpo.ops.segments import sum_over_segments
from jaxtrpo.ops.tree import all_finite
from jaxtrpo.parallel.collectives import Work, sum_over_actors
from jaxtrpo.policies.distributions import Comparable, entropy, log_prob
from jaxtrpo.policies.networks import Policy
from jaxtrpo.policies.recurrence import entry

# Default rule of pg, a2c and a3c. With a constant learning rate, good policies are lost again on many tasks.
ADAPT = "linear(learning_rate=0)"


class PolicyGradient(NamedTuple):
    """Policy gradient of a batch."""

    gradient: Float[Array, " parameter"]  # of the objective to maximise, as one flat vector
    entropy: Float[Array, ""]  # mean over states, nats


def policy_gradient(
    policy: Policy,
    params: PyTree,
    action: Num[Array, "segment time env action"],
    found: Advantages,
    entropy_bonus: float,
    value_weight: float = 0.0,
) -> PolicyGradient:
    """Computes the gradient of mean(log pi(a|s) A + entropy_bonus H(s)) over all valid steps (Williams 1992).

    With a value head, whose targets are then in its units, of mean(log pi(a|s) A + entropy_bonus H(s) - value_weight
    (V(s) - target)^2).
    """
    targets = found.targets
    flat_params, unravel = ravel_pytree(params)

    def sums_of(index: Int[Array, ""] | int) -> tuple[Array, Array]:
        def objective(candidate: Array) -> tuple[Array, Array]:
            distribution, value = outputs(policy, unravel(candidate), entry(targets.obs, index))
            entropies = entropy(distribution)
            gain = log_prob(distribution, action[index]) * found.advantage[index] + entropy_bonus * entropies
            if value is not None:
                gain = gain - value_weight * (value - targets.value[index]) ** 2
            return jnp.sum(targets.weight[index] * gain), jnp.sum(targets.weight[index] * entropies)

        (_, entropies), gradient = jax.value_and_grad(objective, has_aux=True)(flat_params)
        return gradient, entropies

    gradient, entropies = sum_over_segments(sums_of, targets.num_segments)
    gradient, entropies, count = sum_over_actors((gradient, entropies, jnp.sum(targets.weight)))
    count = jnp.maximum(count, 1.0)
    return PolicyGradient(gradient / count, entropies / count)


def outputs(policy: Policy, params: PyTree, inputs: Any) -> tuple[Comparable, Float[Array, "..."] | None]:
    """Returns distributions, and values if the policy has a value head."""
    if policy.value_head is None:
        return cast(Comparable, policy.apply(params, inputs)), None
    distribution, value = policy.value_head.joint(params, inputs)
    return cast(Comparable, distribution), value


def gradient_work(params: PyTree, samples: int) -> Work:
    """Estimates the cost of one gradient."""
    return Work(6.0 * optax.tree.size(params) * samples, shared=True)


def ascend(
    optimizer: optax.GradientTransformation,
    params: PyTree,
    state: optax.OptState,
    gradient: Float[Array, " parameter"],
    learning_rate: Float[Array, ""],
) -> tuple[PyTree, optax.OptState]:
    """Takes one gradient ascent step; changes nothing if the gradient or the new parameters are not finite.

    Args:
      optimizer: scales gradients; its learning rate is 1.
      params: policy parameters, any pytree.
      state: optimiser state for the parameters as one flat vector.
      gradient: gradient of the objective.
      learning_rate: learning rate of the step.

    Returns:
      Parameters and optimiser state after the step.
    """
    flat, unravel = ravel_pytree(params)
    direction, new_state = optimizer.update(gradient, state, flat)
    new = flat + learning_rate * jnp.asarray(direction)
    healthy = all_finite((gradient, new))
    kept = jax.tree.map(lambda after, before: jnp.where(healthy, after, before), (new, new_state), (flat, state))
    return unravel(kept[0]), kept[1]
