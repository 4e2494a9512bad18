"""The policy step along several directions, each followed as far as batches that did not choose it say."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Num, PRNGKeyArray, PyTree

from jaxtrpo.algorithms.advantages import Advantages
from jaxtrpo.algorithms.algorithm import Info
from jaxtrpo.algorithms.natural_gradient import NaturalGradient, Solution, look, solve
from jaxtrpo.algorithms.surrogates import Surrogate
from jaxtrpo.algorithms.trpo_replay.weighting import Judge, hear, no_judgement, remember, standard_error, weights
from jaxtrpo.ops.line_search import Trial
from jaxtrpo.policies.networks import Policy


class Followed(NamedTuple):
    """What is known of the directions of before."""

    judge: Judge
    # Natural gradients of all surrogates but that of the batch alone, where the next solutions start.
    solutions: Float[Array, "other parameter"]


class UnitDirection(NamedTuple):
    """The natural direction of one surrogate, of length one in the Fisher norm."""

    unit: Float[Array, " parameter"]
    product: Float[Array, " parameter"]  # with the Fisher matrix
    length: Float[Array, ""]  # of the natural gradient before
    solved: Solution


def none_followed(directions: int, parameters: int) -> Followed:
    """Before the first batch."""
    return Followed(no_judgement(directions, parameters), jnp.zeros((directions - 1, parameters)))


def judged_direction(
    policy: Policy,
    params: PyTree,
    followed: Followed,
    action: Num[Array, "segment time env action"],
    found: Advantages,
    key: PRNGKeyArray,
    *,
    surrogates: tuple[Surrogate, ...],
    fisher_samples: int,
    cg_iterations: int,
    cg_damping: tuple[float, ...],
) -> tuple[NaturalGradient, Followed, Info]:
    """The sum of natural directions that the judge thinks most of.

    The gradient of the batch alone is mostly noise, which damping keeps out where the policy hardly depends on a
    parameter. Those of others hardly differ from batch to batch: their solutions go on from where the last ones ended,
    as in Hessian-free optimisation (Martens 2010, section 4.5), and with less damping get further in a few updates than
    many more iterations would from nothing.

    Args:
      policy: whose.
      params: that it acted with.
      followed: what is known about the directions of the steps before.
      action: that the policy took, in policy units.
      found: advantages, and the observations they are of.
      key: chooses the states of the Fisher matrix.
      surrogates: objectives per step, one a direction; the first is that of the batch alone, which judges.
      fisher_samples: states of all actors that the Fisher matrix is estimated on.
      cg_iterations: products with the Fisher matrix for each direction, at most.
      cg_damping: added to its diagonal, as a part of the curvature along the gradient; of each surrogate.

    Returns:
      The combined direction as that of the weighted sum of the surrogates, but that `gradient` is the first one's: it
      is what promises and judges are about. And what is known now, and what was found.
    """
    seen = look(policy, params, action, found, key, surrogates=surrogates, fisher_samples=fisher_samples)
    judge = hear(followed.judge, seen.gradients[0])

    def direction(
        gradient: Float[Array, " parameter"], start: Float[Array, " parameter"] | None, damping: float
    ) -> UnitDirection:
        solved = solve(seen.fisher, gradient, cg_iterations=cg_iterations, cg_damping=damping, start=start)
        length = jnp.sqrt(jnp.maximum(solved.curvature, 0.0))
        safe = jnp.where(length > 0, length, 1.0)  # a gradient of zero has no direction; it stays zero
        unit = solved.direction / safe
        return UnitDirection(unit, seen.fisher(unit), safe, solved)

    starts = (None, *followed.solutions)
    directions = [direction(*each) for each in zip(seen.gradients, starts, cg_damping, strict=True)]
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
        "score_gain": judge.slope[0],
        "score_gain_error": error[0],
        "critic_weight": shares[1],
        "critic_gain": judge.slope[1],
        "critic_gain_error": error[1],
    }
    solutions = jnp.stack([each.solved.direction for each in directions[1:]])
    usable = jnp.isfinite(solutions).all(axis=1, keepdims=True)
    return natural, Followed(remember(judge, units), jnp.where(usable, solutions, 0.0)), info
