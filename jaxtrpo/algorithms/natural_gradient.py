"""What a batch says about its policy: the natural gradient, and how good other parameters are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Num, PRNGKeyArray, PyTree

from jaxtrpo.algorithms.advantages import Advantages
from jaxtrpo.algorithms.surrogates import Samples, Surrogate, importance_weighted_advantage
from jaxtrpo.config.checks import require_not_negative, require_whole
from jaxtrpo.ops.cg import CGInfo, conjugate_gradient
from jaxtrpo.ops.fisher import fisher_vector_product
from jaxtrpo.ops.line_search import Trial
from jaxtrpo.ops.segments import sum_and_map_segments, sum_over_segments
from jaxtrpo.parallel.collectives import gather_envs, num_actors, sum_over_actors
from jaxtrpo.policies.distributions import Distribution, entropy, fisher_metric, kl_divergence
from jaxtrpo.policies.networks import Policy

FEW_STATES = 1_024  # a product with the Fisher matrix on as many is done sooner than many hosts have met


class NaturalGradient(NamedTuple):
    """What a batch says about the policy that collected it, and how to judge another. Parameters are one vector."""

    params: Float[Array, " parameter"]  # of the policy that acted
    gradient: Float[Array, " parameter"]  # of the surrogate
    gradient_norm: Float[Array, ""]
    direction: Float[Array, " parameter"]  # A^-1 gradient
    curvature: Float[Array, ""]  # direction^T F direction
    cg: CGInfo
    objective: Float[Array, ""]  # surrogate of the policy that acted
    entropy: Float[Array, ""]  # its mean over states, nats
    evaluate: Callable[[Float[Array, " parameter"]], Trial]  # surrogate and KL of other parameters


class Seen(NamedTuple):
    """What a batch shows of some surrogates around the policy that collected it. Parameters are one vector."""

    params: Float[Array, " parameter"]  # of the policy that acted
    objectives: tuple[Float[Array, ""], ...]  # surrogates of the policy that acted
    gradients: tuple[Float[Array, " parameter"], ...]  # of the surrogates
    entropy: Float[Array, ""]  # mean over states, nats
    # Other parameters -> their surrogates, and the KL divergence from the policy that acted.
    evaluate: Callable[[Float[Array, " parameter"]], tuple[tuple[Float[Array, ""], ...], Float[Array, ""]]]
    fisher: Callable[[Float[Array, " parameter"]], Float[Array, " parameter"]]  # products with the Fisher matrix


class Solution(NamedTuple):
    """The natural gradient of one surrogate."""

    direction: Float[Array, " parameter"]  # A^-1 gradient
    curvature: Float[Array, ""]  # direction^T F direction
    gradient_norm: Float[Array, ""]
    cg: CGInfo


def natural_gradient(
    policy: Policy,
    params: PyTree,
    action: Num[Array, "segment time env action"],
    found: Advantages,
    key: PRNGKeyArray,
    *,
    surrogate: Surrogate,
    fisher_samples: int,
    cg_iterations: int,
    cg_damping: float,
) -> NaturalGradient:
    """The direction in which the surrogate rises most for its KL (Schulman et al. 2015, appendix C).

        A = F + cg_damping (g^T F g / g^T g) I,   direction = A^-1 g

    The damping is relative, in the manner of Marquardt (1963), to the curvature along the gradient.

    Args:
      policy: whose.
      params: that it acted with.
      action: that it took, in policy units.
      found: advantages, and the observations they are of.
      key: chooses the states of the Fisher matrix.
      surrogate: objective per step (see `losses`).
      fisher_samples: states of all actors that the Fisher matrix is estimated on, drawn anew each update.
      cg_iterations: products with the Fisher matrix, at most.
      cg_damping: added to its diagonal, as a part of the curvature along the gradient.
    """
    seen = look(policy, params, action, found, key, surrogates=(surrogate,), fisher_samples=fisher_samples)
    solved = solve(seen.fisher, seen.gradients[0], cg_iterations=cg_iterations, cg_damping=cg_damping)

    def evaluate(candidate: Float[Array, " parameter"]) -> Trial:
        (objective,), kl = seen.evaluate(candidate)
        return Trial(objective, kl)

    return NaturalGradient(
        params=seen.params,
        gradient=seen.gradients[0],
        gradient_norm=solved.gradient_norm,
        direction=solved.direction,
        curvature=solved.curvature,
        cg=solved.cg,
        objective=seen.objectives[0],
        entropy=seen.entropy,
        evaluate=evaluate,
    )


def look(
    policy: Policy,
    params: PyTree,
    action: Num[Array, "segment time env action"],
    found: Advantages,
    key: PRNGKeyArray,
    *,
    surrogates: tuple[Surrogate, ...],
    fisher_samples: int,
) -> Seen:
    """Surrogates, their gradients and the Fisher matrix; arguments as in `natural_gradient`."""
    obs, weight, num_segments = found.targets.obs, found.targets.weight, found.targets.num_segments
    # One vector instead of a tree: an operation or a sum over actors is then one, not one a leaf.
    old_params, unravel = ravel_pytree(params)

    def apply(candidate: Float[Array, " parameter"], obs: Array) -> Distribution:
        return policy.apply(unravel(candidate), obs)

    count = jnp.maximum(sum_over_actors(jnp.sum(weight)), 1.0)

    def flat(leaf: Array, index: Int[Array, ""] | int) -> Array:
        """One segment, on one axis of steps."""
        return leaf[index].reshape(-1, *leaf.shape[3:])

    def samples_of(index: Int[Array, ""] | int, old: Distribution) -> tuple[Samples, Float[Array, " step"]]:
        samples = Samples(flat(obs, index), flat(action, index), flat(found.advantage, index), old)
        return samples, flat(weight, index)

    def start(index: Int[Array, ""] | int) -> tuple[PyTree, Distribution]:
        """Objectives, their gradients and entropy where the search starts, summed; and the distributions there."""

        def objective(candidate: Array, surrogate: Surrogate) -> tuple[Array, tuple[Array, Distribution]]:
            # Where the search starts, the new policy is the old one.
            new = apply(candidate, flat(obs, index))
            samples, weight = samples_of(index, jax.lax.stop_gradient(new))
            return jnp.sum(weight * surrogate(new, samples)), (jnp.sum(weight * entropy(new)), new)

        at_start = [jax.value_and_grad(objective, has_aux=True)(old_params, surrogate) for surrogate in surrogates]
        values = tuple(value for (value, _), _ in at_start)
        gradients = tuple(gradient for _, gradient in at_start)
        (_, (entropies, old)), _ = at_start[0]
        return (values, gradients, entropies), old

    def mean_over_steps(total: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: leaf / count, sum_over_actors(total))

    # The old distributions are kept: every trial of the line search compares with them.
    total, old = sum_and_map_segments(start, num_segments, weight.shape[0])
    objectives, gradients, mean_entropy = mean_over_steps(total)

    def evaluate(candidate: Array) -> tuple[tuple[Array, ...], Array]:
        def all_of(index: Int[Array, ""] | int) -> tuple[tuple[Array, ...], Array]:
            samples, weight = samples_of(index, jax.tree.map(lambda leaf: leaf[index], old))
            new = apply(candidate, samples.obs)
            return (
                tuple(jnp.sum(weight * surrogate(new, samples)) for surrogate in surrogates),
                jnp.sum(weight * kl_divergence(samples.old, new)),
            )

        return mean_over_steps(sum_over_segments(all_of, num_segments))

    def apply_for_products(candidate: Float[Array, " parameter"], obs: Float[Array, "state obs"]) -> Distribution:
        return (policy.apply_for_products or policy.apply)(unravel(candidate), obs)

    fisher = _fisher(apply_for_products, old_params, obs, weight, num_segments, key, fisher_samples)
    return Seen(old_params, objectives, gradients, mean_entropy, evaluate, fisher)


def solve(
    fisher: Callable[[Float[Array, " parameter"]], Float[Array, " parameter"]],
    gradient: Float[Array, " parameter"],
    *,
    cg_iterations: int,
    cg_damping: float,
    start: Float[Array, " parameter"] | None = None,
) -> Solution:
    """The natural gradient of a gradient; arguments as in `natural_gradient`, and a direction to start from."""
    gradient_norm = jnp.linalg.norm(gradient)
    # The Fisher matrix grows with the inverse square of the policy's std, thousandfold on some tasks. If damping
    # did not grow with it, directions that hold nothing but noise would make up more and more of the step.
    unit = gradient / jnp.where(gradient_norm > 0, gradient_norm, 1.0)
    product = fisher(unit)
    damping = cg_damping * unit @ product
    direction, cg = conjugate_gradient(
        lambda vector: fisher(vector) + damping * vector,
        gradient,
        max_iterations=cg_iterations,
        product_with_b=gradient_norm * product + damping * gradient,
        start=start,
    )
    # By the Fisher matrix alone: damping chooses the direction, the bound is one on the KL.
    return Solution(direction, cg.curvature - damping * direction @ direction, gradient_norm, cg)


# (parameters, actions, advantages, key) -> what the batch says
Direction = Callable[[PyTree, Num[Array, "segment time env action"], Advantages, PRNGKeyArray], NaturalGradient]


def make_direction(
    policy: Policy, surrogate: Surrogate | None, fisher_samples: int, cg_iterations: int, cg_damping: float
) -> Direction:
    """`natural_gradient` with its settings; without a surrogate of the user's own it is TRPO's."""
    return partial(
        natural_gradient,
        policy,
        surrogate=surrogate or importance_weighted_advantage,
        fisher_samples=fisher_samples,
        cg_iterations=cg_iterations,
        cg_damping=cg_damping,
    )


def require_natural_gradient(fisher_samples: int, cg_iterations: int, cg_damping: float) -> None:
    """Checks the settings of `natural_gradient`; raises ValueError."""
    require_whole(1, fisher_samples=fisher_samples, cg_iterations=cg_iterations)
    require_not_negative(cg_damping=cg_damping)


def _fisher(
    apply: Callable[[Array, Array], Distribution],
    params: Float[Array, " parameter"],
    obs: Float[Array, "segment time env obs"],
    weight: Float[Array, "segment time env"],
    num_segments: Int[Array, ""],
    key: PRNGKeyArray,
    fisher_samples: int,
) -> Callable[[Array], Array]:
    """Products with the Fisher matrix, estimated on a fixed number of states spread over the batch.

    The time of the batch is cut into equal stretches, one moment is drawn from each, and every environment's state at
    that moment is taken: the same states however many actors there are. A batch with fewer moments gives all it has.
    Actors share the products, for which they meet each time, if the states are many; few are gathered once.
    """
    segments, length, envs = weight.shape
    moments = min(max(fisher_samples // (envs * num_actors()), 1), segments * length)
    filled = num_segments * length
    position = jnp.arange(moments)
    spread = ((position + jax.random.uniform(key, (moments,))) * (filled / moments)).astype(jnp.int32)
    enough = filled >= moments
    chosen = jnp.minimum(jnp.where(enough, spread, position), filled - 1)
    # One axis of states: a product that sums over two axes would copy its arguments first.
    chosen_obs = obs.reshape(-1, envs, obs.shape[-1])[chosen].reshape(-1, obs.shape[-1])
    chosen_weight = weight.reshape(-1, envs)[chosen] * (enough | (position < filled))[:, None]
    few = chosen_weight.size * num_actors() <= FEW_STATES
    if few:
        chosen_obs, chosen_weight = gather_envs((chosen_obs, chosen_weight.reshape(-1)), axis=0)
    reduce = (lambda total: total) if few else sum_over_actors
    share = (chosen_weight / jnp.maximum(reduce(jnp.sum(chosen_weight)), 1.0)).reshape(-1, 1)

    def metric(distribution: Distribution, tangent: Distribution) -> Distribution:
        return jax.tree.map(lambda leaf: share * leaf, fisher_metric(distribution, tangent))

    return fisher_vector_product(lambda p: apply(p, chosen_obs), params, metric, reduce=reduce)
