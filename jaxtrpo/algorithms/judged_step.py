"""The policy step along several directions, each followed as far as batches that did not choose it say."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Num, PRNGKeyArray, PyTree

from jaxtrpo.algorithms.advantages import Advantages
from jaxtrpo.algorithms.algorithm import Info
from jaxtrpo.algorithms.judge import Judge, hear, remember, standard_error, weights
from jaxtrpo.algorithms.natural_gradient import NaturalGradient, Solution, look, solve
from jaxtrpo.losses import Surrogate
from jaxtrpo.ops.line_search import Trial
from jaxtrpo.policies.distributions import parts
from jaxtrpo.policies.networks import Policy


def parts_of(surrogate: Surrogate, number: int) -> tuple[Surrogate, ...]:
    """The same objective with the gradient of one part of the policy's distributions each.

    A batch's direction is nearly all noise of the thousands of parameters that the mean has. The few of the standard
    deviation are known far better, and would hardly move with it: judged by itself, they move as far as that is true.

    Args:
      surrogate: objective per step.
      number: parts that the distributions have (see `distributions.parts`).
    """

    def of_part(index: int) -> Surrogate:
        return lambda new, samples: surrogate(parts(new)[index], samples)

    return tuple(of_part(index) for index in range(number))


class UnitDirection(NamedTuple):
    """The natural direction of one surrogate, of length one in the Fisher norm."""

    unit: Float[Array, " parameter"]
    product: Float[Array, " parameter"]  # with the Fisher matrix
    length: Float[Array, ""]  # of the natural gradient before
    solved: Solution


def judged_direction(
    policy: Policy,
    params: PyTree,
    judge: Judge,
    action: Num[Array, "segment time env action"],
    found: Advantages,
    key: PRNGKeyArray,
    *,
    score: tuple[Surrogate, ...],
    critic: Surrogate,
    fisher_samples: int,
    cg_iterations: int,
    cg_damping: float,
) -> tuple[NaturalGradient, Judge, Info]:
    """The sum of natural directions that the judge thinks most of.

    Args:
      policy: whose.
      params: that it acted with.
      judge: what is known about the directions of the steps before.
      action: that the policy took, in policy units.
      found: advantages, and the observations they are of.
      key: chooses the states of the Fisher matrix.
      score: the batch's own objective per step, each with the gradient of one part (`parts_of`); their sum judges.
      critic: another objective per step.
      fisher_samples: states of all actors that the Fisher matrix is estimated on.
      cg_iterations: products with the Fisher matrix for each direction, at most.
      cg_damping: added to its diagonal, as a part of the curvature along each gradient.

    Returns:
      The combined direction as that of the weighted sum of the surrogates, but that `gradient` is the batch's own: it
      is what promises and judges are about. And what the judge knows now, and what it found.
    """
    seen = look(policy, params, action, found, key, surrogates=(*score, critic), fisher_samples=fisher_samples)
    of_batch = sum(seen.gradients[1:-1], seen.gradients[0])
    judge = hear(judge, of_batch)

    def direction(gradient: Float[Array, " parameter"]) -> UnitDirection:
        solved = solve(seen.fisher, gradient, cg_iterations=cg_iterations, cg_damping=cg_damping)
        length = jnp.sqrt(jnp.maximum(solved.curvature, 0.0))
        safe = jnp.where(length > 0, length, 1.0)  # a gradient of zero has no direction; it stays zero
        unit = solved.direction / safe
        return UnitDirection(unit, seen.fisher(unit), safe, solved)

    directions = [direction(gradient) for gradient in seen.gradients]
    units = jnp.stack([each.unit for each in directions])
    products = jnp.stack([each.product for each in directions])
    gram = units @ products.T
    shares = weights(judge, gram)
    scales = shares / jnp.stack([each.length for each in directions])

    def weighted(objectives: tuple[Float[Array, ""], ...]) -> Float[Array, ""]:
        return scales @ jnp.stack(objectives)

    def evaluate(candidate: Float[Array, " parameter"]) -> Trial:
        objectives, kl = seen.evaluate(candidate)
        return Trial(weighted(objectives), kl)

    natural = NaturalGradient(
        params=seen.params,
        gradient=of_batch,
        gradient_norm=jnp.linalg.norm(of_batch),
        direction=shares @ units,
        curvature=shares @ gram @ shares,
        cg=directions[0].solved.cg,
        objective=weighted(seen.objectives),
        entropy=seen.entropy,
        evaluate=evaluate,
    )
    error = standard_error(judge)
    info = {
        "score_slope": judge.slope[0],
        "score_slope_error": error[0],
        "critic_share": shares[-1],
        "critic_slope": judge.slope[-1],
        "critic_slope_error": error[-1],
    }
    if len(score) > 1:
        info |= {
            "spread_share": jnp.sum(shares[1:-1]),
            "spread_slope": judge.slope[1],
            "spread_slope_error": error[1],
        }
    return natural, remember(judge, units), info
