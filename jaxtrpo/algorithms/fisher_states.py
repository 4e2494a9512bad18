"""States of a batch on which the Fisher matrix is estimated."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxtrpo.parallel.collectives import gather_envs, num_actors, sum_over_actors
from jaxtrpo.policies.recurrence import Sequences

FEW_STATES = 1_024  # up to this many states, a Fisher product takes less time than a collective between many hosts


class States(NamedTuple):
    """States on which the Fisher matrix is estimated."""

    obs: PyTree  # input of the policy
    weight: Float[Array, " state"]  # those of all sum to 1
    reduce: Callable[[PyTree], PyTree]  # sums products over the actors among which the states are distributed


def draw_states(
    obs: PyTree,
    weight: Float[Array, "segment time env"],
    num_segments: Int[Array, ""],
    key: PRNGKeyArray,
    fisher_samples: int,
    *,
    costly: bool = False,
) -> States:
    """Draws a fixed number of states, spread over the batch.

    The time axis of the batch is divided into equal intervals; one time step is drawn from each, and the states of all
    environments at that step are used, so the choice does not depend on the number of actors. A shorter batch
    contributes all its states. A few states are gathered once; many stay distributed over actors, at the price of one
    collective per product, and so do those of a `costly` network (see `collectives.worth_sharing`).
    """
    segments, length, envs = weight.shape
    moments = min(max(fisher_samples // (envs * num_actors()), 1), segments * length)
    chosen, counts = _spread(key, moments, num_segments * length)
    # On a single axis of states: a product that sums over two axes would copy its arguments first.
    chosen_obs = jax.tree.map(
        lambda leaf: leaf.reshape(-1, envs, *leaf.shape[3:])[chosen].reshape(-1, *leaf.shape[3:]), obs
    )
    chosen_weight = weight.reshape(-1, envs)[chosen] * counts[:, None]
    few = not costly and chosen_weight.size * num_actors() <= FEW_STATES
    if few:
        chosen_obs, chosen_weight = gather_envs((chosen_obs, chosen_weight.reshape(-1)), axis=0)
    reduce = (lambda total: total) if few else sum_over_actors
    return States(chosen_obs, chosen_weight / jnp.maximum(reduce(jnp.sum(chosen_weight)), 1.0), reduce)


def draw_sequences(
    obs: Sequences,
    weight: Float[Array, "stretch time env"],
    num_stretches: Int[Array, ""],
    key: PRNGKeyArray,
    fisher_samples: int,
) -> States:
    """Draws whole stretches of all environments, spread over the batch like the steps of `draw_states`.

    They stay distributed over actors.
    """
    stretches, length, envs = weight.shape
    number = min(max(fisher_samples // (length * envs * num_actors()), 1), stretches)
    chosen, counts = _spread(key, number, num_stretches)

    def side_by_side(leaf: Array, axis: int) -> Array:
        """Returns the chosen stretches along the axis of environments."""
        merged = jnp.moveaxis(leaf[chosen], 0, axis)
        return merged.reshape(*merged.shape[:axis], number * envs, *merged.shape[axis + 2 :])

    carry = jax.tree.map(lambda leaf: side_by_side(leaf, 0), obs.carry)
    seen, first = jax.tree.map(lambda leaf: side_by_side(leaf, 1), (obs.obs, obs.first))
    sequences = Sequences(seen, first, carry)
    chosen_weight = side_by_side(weight, 1) * jnp.repeat(counts, envs)
    total = sum_over_actors(jnp.sum(chosen_weight))
    return States(sequences, (chosen_weight / jnp.maximum(total, 1.0)).reshape(-1), sum_over_actors)


def _spread(
    key: PRNGKeyArray, number: int, filled: Int[Array, ""]
) -> tuple[Int[Array, " drawn"], Bool[Array, " drawn"]]:
    """Draws one index from each of `number` equal intervals of the first `filled` entries.

    Returns:
      The indices, and which of them count: if fewer are filled, all of these, once.
    """
    position = jnp.arange(number)
    spread = ((position + jax.random.uniform(key, (number,))) * (filled / number)).astype(jnp.int32)
    enough = filled >= number
    chosen = jnp.minimum(jnp.where(enough, spread, position), filled - 1)
    return chosen, enough | (position < filled)
