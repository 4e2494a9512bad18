"""The policy step along several natural directions, weighted by how well later batches confirm each."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Num, PRNGKeyArray, PyTree

from jaxtrpo.algorithms.advantages import Advantages
from jaxtrpo.algorithms.algorithm import Info
from jaxtrpo.algorithms.natural_gradient import NaturalGradient, Solution, evaluate_batch, solve
from jaxtrpo.algorithms.surrogates import Surrogate
from jaxtrpo.algorithms.trpo_replay.weighting import (
    Evidence,
    add_directions,
    add_slopes,
    no_evidence,
    standard_error,
    weights,
)
from jaxtrpo.ops.line_search import Trial
from jaxtrpo.policies.networks import Policy


class DirectionMemory(NamedTuple):
    """Memory of the directions of previous updates."""

    judge: Evidence  # the name is a key in checkpoints, as is `Memory.followed`
    # Natural gradients of all surrogates but the first, from which the next conjugate-gradient solves start.
    solutions: Float[Array, "other parameter"]


class UnitDirection(NamedTuple):
    """The natural gradient of one surrogate, scaled to length one in the Fisher norm."""

    unit: Float[Array, " parameter"]
    product: Float[Array, " parameter"]  # of the Fisher matrix with `unit`
    length: Float[Array, ""]  # of the natural gradient before scaling
    solved: Solution


def no_directions(directions: int, parameters: int) -> DirectionMemory:
    """Returns the memory before the first batch."""
    return DirectionMemory(no_evidence(directions, parameters), jnp.zeros((directions - 1, parameters)))


def combined_direction(
    policy: Policy,
    params: PyTree,
    memory: DirectionMemory,
    action: Num[Array, "segment time env action"],
    found: Advantages,
    key: PRNGKeyArray,
    *,
    surrogates: tuple[Surrogate, ...],
    fisher_samples: int,
    cg_iterations: int,
    cg_damping: tuple[float, ...],
) -> tuple[NaturalGradient, DirectionMemory, Info]:
    """Computes the weighted sum of the natural directions of several surrogates.

    The gradient of the first surrogate, from the batch alone, is mostly noise; damping suppresses it in directions that
    the policy hardly depends on. The other gradients change little between batches, so their conjugate-gradient solves
    start from the previous solutions, as in Hessian-free optimisation (Martens 2010, section 4.5). With less damping,
    these get further in a few updates than many more iterations from zero would.

    Args:
      policy: policy that acted.
      params: its parameters.
      memory: directions of previous updates and the evidence about them.
      action: actions taken, in policy units.
      found: advantages and their observations.
      key: PRNG key for choosing the states of the Fisher matrix.
      surrogates: objectives per step, one for each direction. The first uses the batch alone; its gradient evaluates
        all directions.
      fisher_samples: states of all actors on which the Fisher matrix is estimated.
      cg_iterations: largest number of products with the Fisher matrix per direction.
      cg_damping: added to the diagonal of the Fisher matrix, as a fraction of the curvature along the gradient; one
        value for each surrogate.

    Returns:
      The natural gradient of the weighted sum of the surrogates (but its field `gradient` is that of the first
      surrogate, from which predicted and actual gains are computed), the updated memory, and metrics.
    """
    batch = evaluate_batch(policy, params, action, found, key, surrogates=surrogates, fisher_samples=fisher_samples)
    evidence = add_slopes(memory.judge, batch.gradients[0])

    def direction(
        gradient: Float[Array, " parameter"], start: Float[Array, " parameter"] | None, damping: float
    ) -> UnitDirection:
        solved = solve(batch.fisher, gradient, cg_iterations=cg_iterations, cg_damping=damping, start=start)
        length = jnp.sqrt(jnp.maximum(solved.curvature, 0.0))
        safe = jnp.where(length > 0, length, 1.0)  # a zero gradient stays zero
        unit = solved.direction / safe
        return UnitDirection(unit, batch.fisher(unit), safe, solved)

    starts = (None, *memory.solutions)
    directions = [direction(*each) for each in zip(batch.gradients, starts, cg_damping, strict=True)]
    units = jnp.stack([each.unit for each in directions])
    products = jnp.stack([each.product for each in directions])
    gram = units @ products.T
    shares = weights(evidence, gram)
    scales = shares / jnp.stack([each.length for each in directions])

    def weighted(objectives: tuple[Float[Array, ""], ...]) -> Float[Array, ""]:
        return scales @ jnp.stack(objectives)

    def evaluate(candidate: Float[Array, " parameter"]) -> Trial:
        objectives, kl = batch.evaluate(candidate)
        return Trial(weighted(objectives), kl)

    natural = NaturalGradient(
        params=batch.params,
        gradient=batch.gradients[0],
        gradient_norm=directions[0].solved.gradient_norm,
        direction=shares @ units,
        curvature=shares @ gram @ shares,
        cg=directions[0].solved.cg,
        objective=weighted(batch.objectives),
        entropy=batch.entropy,
        evaluate=evaluate,
    )
    error = standard_error(evidence)
    info = {
        "score_gain": evidence.slope[0],
        "score_gain_error": error[0],
        "critic_weight": shares[1],
        "critic_gain": evidence.slope[1],
        "critic_gain_error": error[1],
    }
    solutions = jnp.stack([each.solved.direction for each in directions[1:]])
    usable = jnp.isfinite(solutions).all(axis=1, keepdims=True)
    return natural, DirectionMemory(add_directions(evidence, units), jnp.where(usable, solutions, 0.0)), info
