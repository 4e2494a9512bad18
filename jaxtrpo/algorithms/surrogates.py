"""Surrogate objectives of the policy. Pass your own with `train(surrogate=...)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Num, PyTree

from jaxtrpo.config.messages import type_name
from jaxtrpo.policies.distributions import Comparable, log_prob


class Samples(NamedTuple):
    """Steps of the old policy, as passed to a surrogate. No field depends on the new policy."""

    obs: PyTree  # normalised; leaves are [step, ...]
    action: Num[Array, "step action"]  # in policy units
    advantage: Float[Array, " step"]  # standardised over the whole batch
    old: Comparable  # distributions that the actions were drawn from


# (distributions of the new policy, samples) -> objective per step. Its mean over the valid steps of all actors is
# maximised.
Surrogate = Callable[[Comparable, Samples], Float[Array, " step"]]


def objective_of(surrogate: Surrogate, new: Comparable, samples: Samples) -> Float[Array, " step"]:
    """Calls a surrogate.

    Raises:
      ValueError: it does not return one real number per step; a column, for one, would be multiplied with the weights
        of all steps.
    """
    found, wanted = surrogate(new, samples), samples.advantage.shape
    dtype = getattr(found, "dtype", None)
    if dtype is None or found.shape != wanted or not jnp.issubdtype(dtype, jnp.floating):
        given = f"{dtype}{list(found.shape)}" if dtype is not None else type_name(found)
        raise ValueError(f"surrogate must return one real number per step, float32{list(wanted)}, not {given}")
    return found


def importance_weighted_advantage(new: Comparable, samples: Samples) -> Float[Array, " step"]:
    """Computes pi_new(a|s) / pi_old(a|s) * A(s, a) (Schulman et al. 2015, equation 14)."""
    ratio = jnp.exp(log_prob(new, samples.action) - log_prob(samples.old, samples.action))
    return ratio * samples.advantage
