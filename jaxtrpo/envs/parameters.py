"""Changes of environments during training, for curricula."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxtrpo.config.messages import short, type_name


def set_env(where: Any, /, **settings: Any) -> Any:
    """Changes settings of all environments of a training: attributes of simulators, or parameters of JAX environments.

    Simulators that Gymnasium steps are changed themselves, in this process and in workers; each attribute is set where
    a simulator or one of its wrappers has it already. The parameters of a JAX environment are part of its state: pass
    on the state that is returned, which `on_update` does by returning it. Both take effect with the next step, for
    training only, as evaluations have environments of their own.

    Args:
      where: the state that `on_update` is called with, the state of an environment, or an environment of `make_env` of
        simulators that Gymnasium steps.
      **settings: new values by name. Attributes of simulators must be picklable; a parameter of a JAX environment is a
        number for all environments, or an array with a row for each.

    Returns:
      `where` with the new parameters; `where` itself if it has simulators.

    Raises:
      ValueError: the environment has neither simulators that Gymnasium steps nor parameters, or no parameter of that
        name; or a value has another shape.
      SimulatorError: a simulator has no such attribute, or cannot set it; the training ends with a checkpoint.
    """
    from jaxtrpo.envs.gymnasium.environment import GymnasiumEnvironment
    from jaxtrpo.envs.gymnasium.masks import MaskedEnvironment
    from jaxtrpo.envs.gymnasium.simulators import hosts

    if isinstance(where, GymnasiumEnvironment | MaskedEnvironment):
        where.set_attributes(settings)
        return where
    for inner in ("actors", "env"):  # of the state of a run, and of its actors
        if _is_state(where) and hasattr(where, inner):
            return where._replace(**{inner: set_env(getattr(where, inner), **settings)})
    physics: Any = getattr(where, "physics", None)
    parameters = getattr(physics, "parameters", None)
    if isinstance(parameters, Mapping):
        return where._replace(physics=physics._replace(parameters=_changed(parameters, settings)))
    while isinstance(physics, tuple) and physics:  # the handle comes first
        physics = physics[0]
    host = hosts.get(_host_number(physics))
    if host is None:
        raise ValueError(
            f"set_env: {type_name(where)} belongs to no environment that Gymnasium steps, and to no JAX environment "
            "with parameters (or to one that gps collects in)"
        )
    host.set_attributes(settings)
    return where


def _is_state(where: Any) -> bool:
    return isinstance(where, tuple)


def _changed(parameters: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns parameters with new values, on the same devices."""
    changed = dict(parameters)
    for name, value in settings.items():
        if name not in parameters:
            raise ValueError(f"set_env: there is no parameter {name}, but {', '.join(parameters)}")
        old = parameters[name]
        try:
            given = np.asarray(value)
            cast = given.astype(old.dtype)
            if given.dtype.kind not in "biuf" or (old.dtype.kind != "f" and np.any(cast != given)):
                raise TypeError
            new = cast.reshape(old.shape) if cast.ndim else np.full(old.shape, cast)  # environments may be dealt out
        except (TypeError, ValueError):
            raise ValueError(
                f"set_env: {name}={short(value, 60)} must be a number, or an array of {old.size} numbers, of type "
                f"{old.dtype}"
            ) from None
        changed[name] = jax.device_put(new, old.sharding) if isinstance(old, jax.Array) else new
    return changed


def _host_number(handle: Any) -> int:
    """Returns the number of the host in a handle, of which this process may hold only a part; 0 if it is none."""
    from jaxtrpo.envs.gymnasium.simulators import HANDLE_SIZE

    if getattr(handle, "dtype", None) != np.uint32:
        return 0
    shards = getattr(handle, "addressable_shards", None)
    array = np.asarray(shards[0].data if shards else handle)
    return int(array.flat[0]) if array.ndim and array.shape[-1] == HANDLE_SIZE else 0
