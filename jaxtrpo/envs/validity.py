"""Checks of environment objects that users write."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxtrpo.config.checks import require_whole
from jaxtrpo.config.kinds import kinds_differ
from jaxtrpo.config.messages import short, type_name
from jaxtrpo.envs.abilities import actions_of, observation_space
from jaxtrpo.envs.base import Environment, EnvState

# Fields of `EnvState` with one number for each environment.
FIELDS = {
    "reward": (jnp.floating, "float"), "terminated": (jnp.bool_, "bool"), "truncated": (jnp.bool_, "bool"),
    "invalid": (jnp.bool_, "bool"), "elapsed": (jnp.int32, "int32"),
}  # fmt: skip


def require_valid(env: Environment) -> None:
    """Raises ValueError if the attributes of an environment object contradict each other or what `reset` returns."""
    for name in ("observation_size", "action_size", "episode_length"):
        require_whole(1, **{f"env={env.name}: {name}": getattr(env, name)})
    if type(env).__module__.partition(".")[0] == __name__.partition(".")[0]:
        return  # ours, which would only be traced once more
    low, high = np.asarray(env.action_low), np.asarray(env.action_high)
    if not low.shape == high.shape == (env.action_size,) or not np.all(low <= high):
        raise ValueError(
            f"env={env.name}: action_low={short(env.action_low)} and action_high={short(env.action_high)} must be "
            f"arrays of action_size={env.action_size} bounds, the lower ones at most the upper ones"
        )
    counts, _ = actions_of(env)
    if counts and not (len(counts) == env.action_size and np.all(low == 0) and np.all(high == np.array(counts) - 1)):
        raise ValueError(
            f"env={env.name}: with action_counts={short(counts)}, action_low must be 0 and action_high one less than "
            f"the count of each of action_size={env.action_size} coordinates, because choices are counted from 0"
        )
    first = jax.eval_shape(lambda key: env.reset(key, 1), jax.ShapeDtypeStruct((2,), np.uint32))
    if not isinstance(first, EnvState):
        raise ValueError(f"env={env.name}: reset must return an EnvState, not an object of type {type_name(first)}")
    space = observation_space(env)
    if space.is_flat and getattr(first.obs, "shape", None) != (1, env.observation_size):
        raise ValueError(
            f"env={env.name}: reset must return obs of shape (env, {env.observation_size}), as observation_size says, "
            f"but those of one environment have the shape {getattr(first.obs, 'shape', None)}"
        )
    for field, (kind, type_) in FIELDS.items():
        value = getattr(first, field)
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if shape != (1,) or dtype is None or not jnp.issubdtype(dtype, kind):
            raise ValueError(
                f"env={env.name}: reset must return {field} of type {type_} and shape (env,), but those of one "
                f"environment have the type {dtype} and the shape {shape}"
            )
    dtype = np.int32 if counts else np.float32
    after = jax.eval_shape(env.step, first, jax.ShapeDtypeStruct((1, env.action_size), dtype))
    if not isinstance(after, EnvState):
        raise ValueError(f"env={env.name}: step must return an EnvState, not an object of type {type_name(after)}")
    for field, before, now in zip(EnvState._fields, first, after, strict=True):
        if difference := kinds_differ(before, now):
            there, here = difference
            raise ValueError(
                f"env={env.name}: step must return {field} of the same shapes and types as reset, {there}, not {here}"
            )
