"""Attributes of simulators that are set during a training, as for a curriculum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from jaxtrpo.config.messages import short
from jaxtrpo.envs.gymnasium.errors import SimulatorError

# Before Gymnasium 1.0, wrappers of vector environments had another name.
WRAPPERS = gymnasium.Wrapper, getattr(gymnasium.vector, "VectorWrapper", gymnasium.Wrapper)


def set_attributes(name: str, env: Any, attributes: Mapping[str, Any]) -> None:
    """Sets attributes of a simulator, or of the wrapper that has them.

    Args:
      name: name of the environment, for messages.
      env: a `gymnasium.Env`, or a vector environment, all of whose environments get them.
      attributes: values by name.

    Raises:
      SimulatorError: there is no such attribute, or setting it fails.
    """
    for key, value in attributes.items():
        try:
            found = _set(env, key, value)
        except Exception as error:
            raise SimulatorError(f"{name}: {key}={short(value, 60)} cannot be set: {error}") from error
        if not found:
            raise SimulatorError(f"{name} has no attribute {key} to set; give it one in its __init__")


def _set(env: Any, key: str, value: Any) -> bool:
    if isinstance(env, gymnasium.vector.AsyncVectorEnv):
        env.get_attr(key)  # raises AttributeError
        env.set_attr(key, [value] * env.num_envs)
        return True
    if isinstance(env, gymnasium.vector.SyncVectorEnv):
        return all([_set(each, key, value) for each in env.envs])
    # Not `hasattr`: before Gymnasium 1.0, which another interpreter may have, wrappers forward what they do not have.
    if key in getattr(env, "__dict__", {}) or hasattr(type(env), key):
        setattr(env, key, value)
        return True
    return isinstance(env, WRAPPERS) and _set(env.env, key, value)
