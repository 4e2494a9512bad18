"""Policies from user-defined flax modules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, PyTree

from jaxtrpo.config.messages import short
from jaxtrpo.config.specs import is_built_in, parse
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.envs.observation_space import ObservationSpace, Observed, as_space
from jaxtrpo.ops.fast_convolutions import with_fast_convolutions
from jaxtrpo.ops.in_parts import in_parts, rows_at_once
from jaxtrpo.policies.cnn import for_one
from jaxtrpo.policies.distributions import Categorical, Distribution, Gaussian
from jaxtrpo.policies.networks import Policy, PolicyMaker

STATES = 3  # number of states with which a module is checked
CUSTOM = "custom:"  # prefix of the names of user-defined policies

Init = Callable[[Array], PyTree]
Apply = Callable[[PyTree, Any], Any]
# To bound its memory, a network of the user's is applied to part of the states at a time: it is taken to have this many
# channels, whose outputs for a part take no more than this on a CPU.
CHANNELS, MOST_BYTES = 64, 2**24


def module_policy(module: Any) -> PolicyMaker:
    """Builds a policy from a flax module.

    Args:
      module: instance of a linen module, or of an nnx module, whose parameters are the initial ones. Called with
        normalised observations `[state, obs]`, or a dictionary of arrays if there are images (see
        `jaxtrpo.envs.observation_space`), it must return a `Distribution`: `Gaussian(mean, log_std)` for
        continuous actions, with `log_std` per state or shared by all states, or `Categorical(logits)` for discrete
        actions. Its layers must treat each state independently and without randomness; only parameters are learned.

    Returns:
      A policy maker whose `make` checks the module by its shapes, and raises ValueError if it does not fit the
      environment.

    Raises:
      ValueError: `module` is not an instance of a flax module.
    """
    name = f"{CUSTOM}{type(module).__name__}"
    if isinstance(module, nn.Module):
        return PolicyMaker(name, lambda observed, actions: _policy(name, *_linen(module, observed), observed, actions))
    from flax import nnx  # rarely needed, and slow to import

    if isinstance(module, nnx.Module):
        return PolicyMaker(name, lambda observed, actions: _policy(name, *_nnx(module), observed, actions))
    raise ValueError(f"policy={short(module)} must be a spec string such as 'mlp', or an instance of a flax module")


def _linen(module: nn.Module, observed: Observed) -> tuple[Init, Apply]:
    space = as_space(observed).stacked

    def init(key: Array) -> PyTree:
        # Without the names of axes that parameters may be annotated with.
        return nn.meta.unbox(module.init(key, jax.tree.map(jnp.asarray, space.zeros(STATES))))

    return init, module.apply


def _nnx(module: Any) -> tuple[Init, Apply]:
    """Splits a module into parameters, keyed by their paths, and other variables, which stay constant."""
    from flax import nnx

    graph, params, rest = nnx.split(module, nnx.Param, ...)
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    start = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}

    def apply(params: PyTree, obs: Array) -> Any:
        now = structure.unflatten([params["params"][name] for name in start])
        return nnx.merge(graph, now, rest)(obs)

    return lambda _: {"params": start}, apply


def _policy(label: str, init: Init, apply: Apply, observed: Observed, actions: ActionSpace) -> Policy:
    """Checks a module, and adds leading axes to its distributions."""
    space = as_space(observed).stacked
    run = with_fast_convolutions(apply) if space.images else apply

    def apply_to_all(params: PyTree, obs: Any, at_once: int | None = None) -> Distribution:
        # A module needs to handle only one leading axis.
        lead = space.lead_of(obs)
        rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(lead) :]), obs)
        distribution = in_parts(lambda part: _completed(run(params, part)), rows, at_once)
        return jax.tree.map(lambda leaf: leaf.reshape(*lead, leaf.shape[-1]), distribution)

    def apply_in_parts(params: PyTree, obs: Any) -> Distribution:
        pixels = max(math.prod(image.shape[:2]) for image in space.images)
        return apply_to_all(params, obs, rows_at_once(pixels * CHANNELS, most_bytes=MOST_BYTES))

    distribution = _checked(label, init, apply, space, actions)
    noise_size, draw_noise = distribution.noise_size, distribution.draw_noise
    return Policy(
        init=init,
        apply=apply_in_parts if space.images else apply_to_all,
        noise_size=noise_size,
        draw_noise=draw_noise,
        apply_for_products=apply_to_all if space.images else None,
        multiply_adds=for_one(apply_to_all, space) if space.images else None,
    )


def _checked(label: str, init: Init, apply: Apply, space: ObservationSpace, actions: ActionSpace) -> Distribution:
    """Returns the shapes of a module's distributions for a few states.

    Raises:
      ValueError: the module fails, or its result does not fit the environment.
    """
    returned: list[type] = []

    def run(key: Array, obs: Any) -> Any:
        params = init(key)
        distribution = apply(params, obs)
        returned.append(type(distribution))
        if not isinstance(distribution, Distribution):
            return params, None
        return params, (_completed(distribution), distribution.mode())

    obs = space.map(lambda leaf: jax.ShapeDtypeStruct((STATES, *leaf.shape), leaf.dtype))
    try:
        params, result = jax.eval_shape(run, jax.random.PRNGKey(0), obs)
    except Exception as error:  # user code may raise anything
        reason = str(error).partition("\n")[0]
        shape = {name: leaf.shape for name, leaf in obs.items()} if isinstance(obs, dict) else obs.shape
        raise ValueError(f"{label} fails for observations of shape {shape}: {reason}") from error
    if result is None:
        raise ValueError(
            f"{label} must return a distribution, Gaussian or Categorical of jaxtrpo.policies.distributions, not "
            f"{returned[0].__name__}"
        )
    if set(params) - {"params"}:
        raise ValueError(f"{label} has {', '.join(sorted(set(params) - {'params'}))}, but only parameters are learned")
    _check_parameters(label, params)
    distribution, action = result
    _check_shapes(label, distribution)
    _check_actions(label, distribution, action, actions)
    return distribution


def _check_parameters(label: str, params: PyTree) -> None:
    """Raises ValueError if there are no parameters, or some of a type that algorithms cannot learn."""
    leaves = jax.tree.leaves(params)
    if not leaves:
        raise ValueError(f"{label} has no parameters to learn")
    for leaf in leaves:
        if leaf.dtype != jnp.float32:
            raise ValueError(
                f"{label} has parameters of type {leaf.dtype}, but must have float32 (param_dtype); only what its "
                "layers compute may have another type (dtype)"
            )


def _completed(distribution: Distribution) -> Distribution:
    """Broadcasts a standard deviation that is shared by all states, and converts parameters at least to float32.

    Layers may compute in half precision, which is too coarse for probabilities, above all those of masked choices.
    """
    distribution = jax.tree.map(_with_enough_digits, distribution)
    if isinstance(distribution, Gaussian):
        shape = distribution.mean.shape
        if jnp.shape(distribution.log_std) in ((), shape[-1:]):
            return distribution._replace(log_std=jnp.broadcast_to(distribution.log_std, shape))
    return distribution


def _with_enough_digits(leaf: Any) -> Array:
    leaf = jnp.asarray(leaf)  # a number is allowed, too
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


def _check_shapes(label: str, found: Distribution) -> None:
    name = type(found).__name__
    if isinstance(found, Categorical) and not isinstance(found.logits, tuple):
        raise ValueError(
            f"{label}: logits of a Categorical must be a tuple of arrays, one per coordinate of the action"
        )
    for leaf in jax.tree.leaves(found):
        if leaf.ndim != 2 or leaf.shape[0] != STATES or not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(
                f"{label} returned a {name} with {leaf.dtype}{list(leaf.shape)} for {STATES} states, but its "
                "parameters must be floating-point arrays [state, number]"
            )
    if isinstance(found, Gaussian) and found.mean.shape != found.log_std.shape:
        raise ValueError(f"{label} returned a Gaussian whose mean and log_std have different sizes")


def _check_actions(label: str, found: Distribution, action: jax.ShapeDtypeStruct, actions: ActionSpace) -> None:
    name = type(found).__name__
    if jnp.issubdtype(action.dtype, jnp.integer) != bool(actions.counts):
        raise ValueError(f"{label} returned a {name}, but the environment's actions are {actions.kind}")
    if isinstance(found, Categorical):
        counts = tuple(logits.shape[-1] for logits in found.logits)
        fits, returned = counts == tuple(actions.counts), f"with {counts} choices"
    else:
        fits, returned = action.shape == (STATES, actions.size), f"of size {action.shape[-1]}"
    if not fits:
        raise ValueError(f"{label} returned a {name} {returned}, but the environment's actions are {actions.kind}")


def is_called(maker: PolicyMaker, network: str) -> bool:
    """Returns whether a spec string, such as that in a file, is a name of this policy; defaults may be spelt out."""
    return maker.spec_string == (parse("policy", network).spec_string if is_built_in("policy", network) else network)


def policy_maker(policy: Any) -> PolicyMaker:
    """Converts a spec string or a flax module to a policy maker; returns policy makers unchanged."""
    if isinstance(policy, str):
        return parse("policy", policy)
    return policy if isinstance(policy, PolicyMaker) else module_policy(policy)
