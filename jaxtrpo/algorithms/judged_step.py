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
from jaxtrpo.policies.networks import Policy


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
    surrogates: tuple[Surrogate, ...],
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
      surrogates: objectives per step, one a direction; the first is that of the batch alone, which judges.
      fisher_samples: states of all actors that the Fisher matrix is estimated on.
      cg_iterations: products with the Fisher matrix for each direction, at most.
      cg_damping: added to its diagonal, as a part of the curvature along each gradient.

    Returns:
      The combined direction as that of the weighted sum of the surrogates, but that `gradient` is the first one's: it
      is what promises and judges are about. And what the judge knows now, and what it found.
    """
    seen = look(policy, params, action, found, key, surrogates=surrogates, fisher_samples=fisher_samples)
    judge = hear(judge, seen.gradients[0])

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
        gradient=seen.gradients[0],
        gradient_norm=directions[0].solved.gradient_norm,
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
        "critic_share": shares[1],
        "critic_slope": judge.slope[1],
        "critic_slope_error": error[1],
    }
    return natural, remember(judge, units), info
