"""The trust-region policy step: a natural gradient scaled to a KL bound, with a line search."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray, PyTree

from jaxtrpo.algorithms.advantages import Advantages
from jaxtrpo.algorithms.natural_gradient import Direction, NaturalGradient
from jaxtrpo.config.checks import require_number, require_whole
from jaxtrpo.ops.costs import of_forward_pass
from jaxtrpo.ops.line_search import LineSearchInfo, backtracking_line_search
from jaxtrpo.parallel.collectives import Work
from jaxtrpo.policies.networks import Policy


class StepInfo(NamedTuple):
    """Diagnostics of one policy step."""

    kl: Float[Array, ""]  # mean KL between the policies before and after, nats
    improvement: Float[Array, ""]  # of the surrogate
    line_search_steps: Int[Array, ""]
    accepted: Bool[Array, ""]  # if False, the policy is unchanged
    cg_iterations: Int[Array, ""]
    cg_residual: Float[Array, ""]  # norm, relative to the gradient's
    gradient_norm: Float[Array, ""]
    predicted_gain: Float[Array, ""]  # of the surrogate to first order: its slope along the step
    gain_ratio: Float[Array, ""]  # slope that this batch measures along the last steps, over the slope they predicted
    entropy: Float[Array, ""]  # of the policy that acted, mean over states, nats


class Path(NamedTuple):
    """Discounted sums over the last policy steps; each step counts PATH_DECAY times as much as the next."""

    steps: PyTree  # sum of parameter changes
    predicted: Float[Array, ""]  # sum of the slopes along them, each measured by the batch that made the step


PATH_DECAY = 0.9  # a batch evaluates about ten steps together; the slope along a single one is mostly noise


def no_path(params: PyTree) -> Path:
    """Returns the path before the first step."""
    return Path(jax.tree.map(jnp.zeros_like, params), jnp.zeros(()))


def step_to_bound(natural: NaturalGradient, max_kl: Float[Array, ""]) -> Float[Array, " parameter"]:
    """Computes sqrt(2 max_kl / x^T F x) x for the direction x, the longest step within the bound for a quadratic KL."""
    curvature = natural.curvature
    # Without curvature the step is zero, and the line search fails.
    scale = jnp.where(curvature > 0, jnp.sqrt(2 * max_kl / jnp.where(curvature > 0, curvature, 1.0)), 0.0)
    return scale * natural.direction


def finish_step(
    natural: NaturalGradient, params: PyTree, path: Path, new_params: Float[Array, " parameter"], search: LineSearchInfo
) -> tuple[PyTree, Path, StepInfo]:
    """Evaluates the path with the new batch, which is independent of it, and appends the step just made.

    Args:
      natural: natural gradient of the batch.
      params: policy parameters before the step, any pytree.
      path: path of the previous steps.
      new_params: policy parameters after the step, as one flat vector.
      search: diagnostics of the line search that found them.

    Returns:
      New parameters, new path and diagnostics.
    """
    _, unravel = ravel_pytree(params)
    step = new_params - natural.params
    slope = jnp.where(search.accepted, natural.gradient @ step, 0.0)
    walked = ravel_pytree(path.steps)[0]
    norm = natural.gradient_norm
    return (
        unravel(new_params),
        Path(unravel(PATH_DECAY * walked + step), PATH_DECAY * path.predicted + slope),
        StepInfo(
            kl=search.kl,
            improvement=search.improvement,
            line_search_steps=search.trials,
            accepted=search.accepted,
            cg_iterations=natural.cg.iterations,
            cg_residual=natural.cg.residual_norm / jnp.where(norm > 0, norm, 1.0),
            gradient_norm=norm,
            predicted_gain=slope,
            gain_ratio=jnp.where(path.predicted > 0, natural.gradient @ walked / path.predicted, jnp.nan),
            entropy=natural.entropy,
        ),
    )


# (policy parameters, path, actions, advantages, max KL, key) -> (policy parameters, path, diagnostics)
PolicyStep = Callable[
    [PyTree, Path, Num[Array, "segment time env action"], Advantages, Float[Array, ""], PRNGKeyArray],
    tuple[PyTree, Path, StepInfo],
]


def take_step(
    natural: NaturalGradient,
    params: PyTree,
    path: Path,
    max_kl: Float[Array, ""],
    *,
    line_search_shrink: float,
    line_search_steps: int,
) -> tuple[PyTree, Path, StepInfo]:
    """Makes a step of full length, backtracking until the surrogate improves and the KL is within its bound.

    Args:
      natural: natural gradient of the batch.
      params: policy parameters before the step, any pytree.
      path: path of the previous steps.
      max_kl: KL bound, nats.
      line_search_shrink: factor between successive trials.
      line_search_steps: number of trials before giving up.

    Returns:
      New parameters, new path and diagnostics.
    """
    new_params, search = backtracking_line_search(
        natural.evaluate,
        natural.params,
        step_to_bound(natural, max_kl),
        max_kl=max_kl,
        start_objective=natural.objective,
        shrink=line_search_shrink,
        max_trials=line_search_steps,
    )
    return finish_step(natural, params, path, new_params, search)


def make_policy_step(direction: Direction, *, line_search_shrink: float, line_search_steps: int) -> PolicyStep:
    """Returns `take_step` along the direction computed from each batch, with its settings bound."""

    def policy_step(params, path, action, found, max_kl, key):
        natural = direction(params, action, found, key)
        return take_step(
            natural,
            params,
            path,
            max_kl,
            line_search_shrink=line_search_shrink,
            line_search_steps=line_search_steps,
        )

    return policy_step


def step_work(policy: Policy, fisher_samples: int, cg_iterations: int) -> Callable[[PyTree, int], Work]:
    """Returns (policy parameters, samples) -> cost of a step: gradient, Fisher products, two line-search trials."""

    def work(params: PyTree, samples: int) -> Work:
        flops = 10.0 * samples + 8.0 * min(samples, fisher_samples) * cg_iterations
        return Work(of_forward_pass(policy.multiply_adds, params) * flops, shared=True)

    return work


def require_line_search(line_search_shrink: float, line_search_steps: int) -> None:
    """Raises ValueError if a setting of the line search is out of range."""
    require_number("between 0 and 1", lambda value: 0 < value < 1, line_search_shrink=line_search_shrink)
    require_whole(1, line_search_steps=line_search_steps)
