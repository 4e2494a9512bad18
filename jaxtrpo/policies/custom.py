"""A policy from a network that the user brings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, PyTree

from jaxtrpo.config.messages import short
from jaxtrpo.config.specs import parse
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.policies.distributions import Categorical, Distribution, Gaussian
from jaxtrpo.policies.networks import Policy, PolicyMaker

STATES = 3  # that a module is tried with
CUSTOM = "custom:"  # how the words of a network that is nobody's but the user's begin

Init = Callable[[Array], PyTree]
Apply = Callable[[PyTree, Float[Array, "state obs"]], Any]


def module_policy(module: Any) -> PolicyMaker:
    """Makes a policy of a flax module.

    Args:
      module: a linen module, or an nnx one, which begins with the parameters that it has. Called with normalised
        observations `[state, obs]` it returns a `Distribution`: `Gaussian(mean, log_std)` where actions are real
        numbers, with `log_std` for each state or shared by all, `Categorical(logits)` where they are choices. Any
        layers do that act on each state by itself and without randomness; only parameters are learned.

    Returns:
      Its `make` tries the module on shapes, and raises ValueError, one sentence, where it does not fit.

    Raises:
      ValueError: it is no flax module.
    """
    words = f"{CUSTOM}{type(module).__name__}"
    if isinstance(module, nn.Module):
        return PolicyMaker(words, lambda size, actions: _policy(words, *_linen(module, size), size, actions))
    from flax import nnx  # few need it, and it takes a moment

    if isinstance(module, nnx.Module):
        return PolicyMaker(words, lambda size, actions: _policy(words, *_nnx(module), size, actions))
    raise ValueError(f"a policy is made of an instance of a flax module, not of {short(module)}")


def _linen(module: nn.Module, observation_size: int) -> tuple[Init, Apply]:
    return lambda key: module.init(key, jnp.zeros((STATES, observation_size))), module.apply


def _nnx(module: Any) -> tuple[Init, Apply]:
    """Parameters by their paths; whatever else the module holds stays as it is."""
    from flax import nnx

    graph, params, rest = nnx.split(module, nnx.Param, ...)
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    start = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}

    def apply(params: PyTree, obs: Array) -> Any:
        now = structure.unflatten([params["params"][name] for name in start])
        return nnx.merge(graph, now, rest)(obs)

    return lambda _: {"params": start}, apply


def _policy(words: str, init: Init, apply: Apply, observation_size: int, actions: ActionSpace) -> Policy:
    """Checks the module, and gives its distributions the axes that everybody counts on."""

    def apply_to_all(params: PyTree, obs: Float[Array, "... obs"]) -> Distribution:
        # A module need not know any leading axes but one.
        distribution = _spread(apply(params, obs.reshape(-1, obs.shape[-1])))
        return jax.tree.map(lambda leaf: leaf.reshape(*obs.shape[:-1], leaf.shape[-1]), distribution)

    found = _try(words, init, apply, observation_size, actions)
    return Policy(init=init, apply=apply_to_all, noise_size=found.noise_size, draw_noise=found.draw_noise)


def _try(words: str, init: Init, apply: Apply, observation_size: int, actions: ActionSpace) -> Distribution:
    """Distributions of a few states, as shapes.

    Raises:
      ValueError: one sentence; the module does not do what is expected.
    """
    returned: list[type] = []

    def run(key: Array, obs: Array) -> Any:
        params = init(key)
        distribution = apply(params, obs)
        returned.append(type(distribution))
        if not isinstance(distribution, Distribution):
            return params, None
        return params, (_spread(distribution), distribution.mode())

    obs = jax.ShapeDtypeStruct((STATES, observation_size), jnp.float32)
    try:
        params, found = jax.eval_shape(run, jax.random.PRNGKey(0), obs)
    except Exception as error:  # whatever a user's code may raise
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{words} fails for observations of shape {obs.shape}: {reason}") from error
    if found is None:
        raise ValueError(
            f"{words} returned {returned[0].__name__}, but a policy returns a distribution: Gaussian or Categorical "
            "of jaxtrpo.policies.distributions"
        )
    if set(params) - {"params"}:
        raise ValueError(f"{words} has {', '.join(sorted(set(params) - {'params'}))}, but only parameters are learned")
    if not jax.tree.leaves(params):
        raise ValueError(f"{words} has no parameters")
    distribution, action = found
    _check_shapes(words, distribution)
    _check_actions(words, distribution, action, actions)
    return distribution


def _spread(distribution: Distribution) -> Distribution:
    """Everything has an axis of states: a standard deviation that they share is repeated."""
    if isinstance(distribution, Gaussian):
        mean, log_std = distribution
        if jnp.shape(log_std) in ((), mean.shape[-1:]):
            return Gaussian(mean, jnp.broadcast_to(log_std, mean.shape))
    return distribution


def _check_shapes(words: str, found: Distribution) -> None:
    name = type(found).__name__
    if isinstance(found, Categorical) and not isinstance(found.logits, tuple):
        raise ValueError(f"{words} returned a Categorical whose logits are no tuple of arrays, one a coordinate")
    for leaf in jax.tree.leaves(found):
        if leaf.ndim != 2 or leaf.shape[0] != STATES or not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(
                f"{words} returned a {name} with {leaf.dtype}{list(leaf.shape)} for {STATES} states, but its "
                "parameters are arrays of real numbers [state, number]"
            )
    if isinstance(found, Gaussian) and found.mean.shape != found.log_std.shape:
        raise ValueError(f"{words} returned a Gaussian whose mean and log_std have different sizes")


def _check_actions(words: str, found: Distribution, action: jax.ShapeDtypeStruct, actions: ActionSpace) -> None:
    name = type(found).__name__
    if jnp.issubdtype(action.dtype, jnp.integer) != bool(actions.counts):
        raise ValueError(f"{words} returned a {name}, but the environment's actions are {actions.kind}")
    if isinstance(found, Categorical):
        counts = tuple(logits.shape[-1] for logits in found.logits)
        fits, returned = counts == tuple(actions.counts), f"with {counts} choices"
    else:
        fits, returned = action.shape == (STATES, actions.size), f"of size {action.shape[-1]}"
    if not fits:
        raise ValueError(f"{words} returned a {name} {returned}, but the environment's actions are {actions.kind}")


def policy_maker(policy: Any) -> PolicyMaker:
    """A policy of its words, of a flax module of the user's own, or as it is."""
    if isinstance(policy, str):
        return parse("policy", policy)
    return policy if isinstance(policy, PolicyMaker) else module_policy(policy)
