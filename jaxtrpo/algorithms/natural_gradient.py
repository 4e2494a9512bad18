"""The natural gradient of a batch, and the surrogate and KL of candidate parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Num, PRNGKeyArray, PyTree

from jaxtrpo.algorithms.advantages import Advantages
from jaxtrpo.algorithms.fisher_states import States, draw_sequences, draw_states
from jaxtrpo.algorithms.surrogates import Samples, Surrogate, importance_weighted_advantage, objective_of
from jaxtrpo.config.checks import require_not_negative, require_whole
from jaxtrpo.envs.observation_space import ObservationSpace
from jaxtrpo.ops.cg import CGInfo, conjugate_gradient
from jaxtrpo.ops.fisher import fisher_vector_product
from jaxtrpo.ops.line_search import Trial
from jaxtrpo.ops.segments import sum_and_map_segments, sum_over_segments
from jaxtrpo.parallel.collectives import sum_over_actors, worth_sharing
from jaxtrpo.policies.distributions import Comparable, entropy, fisher_metric, kl_divergence
from jaxtrpo.policies.masking import plain_observations
from jaxtrpo.policies.networks import Policy
from jaxtrpo.policies.recurrence import Sequences, entry, one_axis_of_steps

DAMPING, DAMPING_WITH_MEMORY, DAMPING_WITH_IMAGES = 0.03, 0.005, 0.001  # see `damping_for`
# Why a torso must not be shared (see `Algorithm.refuses_shared`).
CONTROLS_KL = "its step controls the KL of the policy, which the value loss would move, too"


class NaturalGradient(NamedTuple):
    """Natural gradient of a batch, and a function to evaluate candidates. Parameters are one flat vector."""

    params: Float[Array, " parameter"]  # of the policy that acted
    gradient: Float[Array, " parameter"]  # of the surrogate
    gradient_norm: Float[Array, ""]
    direction: Float[Array, " parameter"]  # A^-1 gradient
    curvature: Float[Array, ""]  # direction^T F direction
    cg: CGInfo
    objective: Float[Array, ""]  # surrogate of the policy that acted
    entropy: Float[Array, ""]  # of the policy that acted, mean over states, nats
    evaluate: Callable[[Float[Array, " parameter"]], Trial]  # candidate parameters -> surrogate and KL


class BatchEvaluation(NamedTuple):
    """Surrogates, gradients and Fisher matrix at the policy that collected a batch. Parameters are one flat vector."""

    params: Float[Array, " parameter"]  # of the policy that acted
    objectives: tuple[Float[Array, ""], ...]  # surrogates of the policy that acted
    gradients: tuple[Float[Array, " parameter"], ...]  # of the surrogates
    entropy: Float[Array, ""]  # of the policy that acted, mean over states, nats
    # Candidate parameters -> surrogates, and mean KL divergence from the policy that acted.
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
    """Computes the direction of steepest ascent of the surrogate per KL (Schulman et al. 2015, appendix C).

        A = F + cg_damping (g^T F g / g^T g) I,   direction = A^-1 g

    The damping is relative to the curvature along the gradient, in the manner of Marquardt (1963).

    Args:
      policy: policy that acted.
      params: its parameters.
      action: actions taken, in policy units.
      found: advantages and their observations.
      key: PRNG key for choosing the states of the Fisher matrix.
      surrogate: objective per step (see `surrogates`).
      fisher_samples: states of all actors on which the Fisher matrix is estimated, drawn anew in each update.
      cg_iterations: largest number of products with the Fisher matrix.
      cg_damping: added to the diagonal of the Fisher matrix, as a fraction of the curvature along the gradient.
    """
    batch = evaluate_batch(policy, params, action, found, key, surrogates=(surrogate,), fisher_samples=fisher_samples)
    solved = solve(batch.fisher, batch.gradients[0], cg_iterations=cg_iterations, cg_damping=cg_damping)

    def evaluate(candidate: Float[Array, " parameter"]) -> Trial:
        (objective,), kl = batch.evaluate(candidate)
        return Trial(objective, kl)

    return NaturalGradient(
        params=batch.params,
        gradient=batch.gradients[0],
        gradient_norm=solved.gradient_norm,
        direction=solved.direction,
        curvature=solved.curvature,
        cg=solved.cg,
        objective=batch.objectives[0],
        entropy=batch.entropy,
        evaluate=evaluate,
    )


def evaluate_batch(
    policy: Policy,
    params: PyTree,
    action: Num[Array, "segment time env action"],
    found: Advantages,
    key: PRNGKeyArray,
    *,
    surrogates: tuple[Surrogate, ...],
    fisher_samples: int,
) -> BatchEvaluation:
    """Computes surrogates, their gradients and Fisher products; for the arguments see `natural_gradient`."""
    obs, weight, num_segments = found.targets.obs, found.targets.weight, found.targets.num_segments
    # As one flat vector, an operation or a sum over actors is one instead of one per leaf.
    old_params, unravel = ravel_pytree(params)

    count = jnp.maximum(sum_over_actors(jnp.sum(weight)), 1.0)

    def flat(leaf: Array, index: Int[Array, ""] | int) -> Array:
        """Returns one segment with time and env merged into a single axis of steps."""
        return leaf[index].reshape(-1, *leaf.shape[3:])

    in_sequence = isinstance(obs, Sequences)
    plain_obs = plain_observations(obs)

    def apply(candidate: Float[Array, " parameter"], index: Int[Array, ""] | int) -> Comparable:
        """Returns the distributions of one segment, with a single axis of steps."""
        if in_sequence:
            found = one_axis_of_steps(policy.apply(unravel(candidate), entry(obs, index)))
        else:
            found = policy.apply(unravel(candidate), jax.tree.map(lambda leaf: flat(leaf, index), obs))
        return cast(Comparable, found)

    def samples_of(index: Int[Array, ""] | int, old: Comparable) -> tuple[Samples, Float[Array, " step"]]:
        seen = jax.tree.map(lambda leaf: flat(leaf, index), plain_obs)
        samples = Samples(seen, flat(action, index), flat(found.advantage, index), old)
        return samples, flat(weight, index)

    def start(index: Int[Array, ""] | int) -> tuple[PyTree, Comparable]:
        """Returns sums of objectives, gradients and entropies at the old policy, and its distributions."""

        def objective(candidate: Array, surrogate: Surrogate) -> tuple[Array, tuple[Array, Comparable]]:
            # At the start of the search, the new policy is the old one.
            new = apply(candidate, index)
            samples, weight = samples_of(index, jax.lax.stop_gradient(new))
            return jnp.sum(weight * objective_of(surrogate, new, samples)), (jnp.sum(weight * entropy(new)), new)

        at_start = [jax.value_and_grad(objective, has_aux=True)(old_params, surrogate) for surrogate in surrogates]
        values = tuple(value for (value, _), _ in at_start)
        gradients = tuple(gradient for _, gradient in at_start)
        (_, (entropies, old)), _ = at_start[0]
        return (values, gradients, entropies), old

    def mean_over_steps(total: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: leaf / count, sum_over_actors(total))

    # The old distributions are stored, because every trial of the line search needs them.
    with jax.named_scope("gradient"):
        total, old = sum_and_map_segments(start, num_segments, weight.shape[0])
    objectives, gradients, mean_entropy = mean_over_steps(total)

    @jax.named_scope("line_search")
    def evaluate(candidate: Array) -> tuple[tuple[Array, ...], Array]:
        def all_of(index: Int[Array, ""] | int) -> tuple[tuple[Array, ...], Array]:
            samples, weight = samples_of(index, entry(old, index))
            new = apply(candidate, index)
            return (
                tuple(jnp.sum(weight * objective_of(surrogate, new, samples)) for surrogate in surrogates),
                jnp.sum(weight * kl_divergence(samples.old, new)),
            )

        return mean_over_steps(sum_over_segments(all_of, num_segments))

    def apply_for_products(candidate: Float[Array, " parameter"], obs: Any) -> Comparable:
        if in_sequence:
            return one_axis_of_steps(policy.apply(unravel(candidate), obs))
        return cast(Comparable, (policy.apply_for_products or policy.apply)(unravel(candidate), obs))

    if in_sequence:
        states = draw_sequences(obs, weight, num_segments, key, fisher_samples)
    else:
        known = policy.multiply_adds
        costly = known is not None and worth_sharing(known(params) * fisher_samples)
        states = draw_states(obs, weight, num_segments, key, fisher_samples, costly=costly)
    fisher = _fisher(apply_for_products, old_params, states)
    return BatchEvaluation(old_params, objectives, gradients, mean_entropy, evaluate, fisher)


@jax.named_scope("fisher")
def solve(
    fisher: Callable[[Float[Array, " parameter"]], Float[Array, " parameter"]],
    gradient: Float[Array, " parameter"],
    *,
    cg_iterations: int,
    cg_damping: float,
    start: Float[Array, " parameter"] | None = None,
) -> Solution:
    """Computes the natural gradient, optionally starting from a given direction; see `natural_gradient`."""
    gradient_norm = jnp.linalg.norm(gradient)
    # The Fisher matrix grows with the inverse square of the policy's standard deviation, a thousandfold on some tasks.
    # If the damping did not grow with it, directions of pure noise would make up more and more of the step.
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
    # Without the damping, which affects only the direction: the bound is on the KL.
    return Solution(direction, cg.curvature - damping * direction @ direction, gradient_norm, cg)


# (policy parameters, actions, advantages, key) -> natural gradient
Direction = Callable[[PyTree, Num[Array, "segment time env action"], Advantages, PRNGKeyArray], NaturalGradient]


def make_direction(
    policy: Policy, surrogate: Surrogate | None, fisher_samples: int, cg_iterations: int, cg_damping: float
) -> Direction:
    """Returns `natural_gradient` with its settings bound; the default surrogate is TRPO's."""
    return partial(
        natural_gradient,
        policy,
        surrogate=surrogate or importance_weighted_advantage,
        fisher_samples=fisher_samples,
        cg_iterations=cg_iterations,
        cg_damping=cg_damping,
    )


def damping_for(cg_damping: float | None, policy: Policy, observations: ObservationSpace) -> float:
    """Returns the damping of `natural_gradient`; by default less of it for images and for networks with memory.

    The activations of convolutional layers have large means. Along these, which shift all states alike, the curvature
    is a large multiple of that along differences between states, which much damping would suppress. In recurrent
    networks, the curvature along what is remembered for many steps is small at first.
    """
    if cg_damping is not None:
        return cg_damping
    if observations.images:
        return DAMPING_WITH_IMAGES
    remembers = policy.recurrence is not None and observations.frames == 1
    return DAMPING_WITH_MEMORY if remembers else DAMPING


def require_natural_gradient(fisher_samples: int, cg_iterations: int, cg_damping: float | None) -> None:
    """Raises ValueError if a setting of `natural_gradient` is out of range."""
    require_whole(1, fisher_samples=fisher_samples, cg_iterations=cg_iterations)
    if cg_damping is not None:
        require_not_negative(cg_damping=cg_damping)


def _fisher(
    apply: Callable[[Array, Any], Comparable], params: Float[Array, " parameter"], states: States
) -> Callable[[Array], Array]:
    """Returns products with the Fisher matrix, the mean over states."""
    share = states.weight.reshape(-1, 1)

    def metric(distribution: Comparable, tangent: Comparable) -> Comparable:
        return jax.tree.map(lambda leaf: share * leaf, fisher_metric(distribution, tangent))

    return fisher_vector_product(lambda p: apply(p, states.obs), params, metric, reduce=states.reduce)
