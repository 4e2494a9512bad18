"""The policy step: a natural gradient under a KL bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray, PyTree

from jaxtrpo.algorithms.advantages import Advantages
from jaxtrpo.algorithms.natural_gradient import Direction, NaturalGradient
from jaxtrpo.config.checks import require_number, require_whole
from jaxtrpo.ops.line_search import LineSearchInfo, backtracking_line_search
from jaxtrpo.parallel.collectives import Work


class StepInfo(NamedTuple):
    """What one policy step did."""

    kl: Float[Array, ""]  # between the policies before and after, nats
    improvement: Float[Array, ""]  # of the surrogate
    line_search_steps: Int[Array, ""]
    accepted: Bool[Array, ""]  # if not, the old policy stays
    cg_iterations: Int[Array, ""]
    cg_residual: Float[Array, ""]  # norm, relative to the gradient's
    gradient_norm: Float[Array, ""]
    predicted_gain: Float[Array, ""]  # of the surrogate, to first order: its slope along the step
    gain_ratio: Float[Array, ""]  # the slope that this batch sees along the last steps, over what they predicted
    entropy: Float[Array, ""]  # of the policy that acted, mean over states, nats


class Path(NamedTuple):
    """Where the last steps led; every step counts PATH_DECAY of the next."""

    steps: PyTree  # sum of what they added to the parameters
    predicted: Float[Array, ""]  # sum of their slopes, each by the batch that made it


PATH_DECAY = 0.9  # a batch judges about ten steps: a single one is mostly noise, and so would be what is said about it


def no_path(params: PyTree) -> Path:
    """Before the first step."""
    return Path(jax.tree.map(jnp.zeros_like, params), jnp.zeros(()))


def step_to_bound(natural: NaturalGradient, max_kl: Float[Array, ""]) -> Float[Array, " parameter"]:
    """sqrt(2 max_kl / x^T F x) x for the direction x: as far as the bound allows if the KL were quadratic."""
    curvature = natural.curvature
    # Without curvature there is no direction to go; the line search then stays.
    scale = jnp.where(curvature > 0, jnp.sqrt(2 * max_kl / jnp.where(curvature > 0, curvature, 1.0)), 0.0)
    return scale * natural.direction


def finish_step(
    natural: NaturalGradient, params: PyTree, path: Path, new_params: Float[Array, " parameter"], search: LineSearchInfo
) -> tuple[PyTree, Path, StepInfo]:
    """Judges the path by the batch, which has not seen it, and adds the step that was made.

    Args:
      natural: of the batch.
      params: what it was made of, in their own structure.
      path: of the steps before.
      new_params: where the step led.
      search: how they were found.
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


# (parameters, path that led there, actions, advantages, max KL, key) -> (parameters, path, what the step did)
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
    """The step under a KL bound, with backtracking until surrogate and KL agree.

    Args:
      natural: where to go, by the batch.
      params: what it was made of, in their own structure.
      path: of the steps before.
      max_kl: the bound, nats.
      line_search_shrink: factor between trials.
      line_search_steps: trials before giving up.
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
    """`take_step` in the direction that the batch shows, with its settings."""

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


def step_work(fisher_samples: int, cg_iterations: int) -> Callable[[PyTree, int], Work]:
    """(parameters, samples) -> about what a step takes: gradient, products, two trials."""

    def work(params: PyTree, samples: int) -> Work:
        flops = 10.0 * samples + 8.0 * min(samples, fisher_samples) * cg_iterations
        return Work(optax.tree.size(params) * flops, shared=True)

    return work


def require_line_search(line_search_shrink: float, line_search_steps: int) -> None:
    """Checks the settings of a line search; raises ValueError."""
    require_number("between 0 and 1", lambda value: 0 < value < 1, line_search_shrink=line_search_shrink)
    require_whole(1, line_search_steps=line_search_steps)
