"""Changes of environments during training, for curricula."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxtrpo.config.messages import short, type_name


def set_env(where: Any, /, **settings: Any) -> Any:
    """Changes settings of all environments of a run: attributes of simulators, or parameters of JAX environments.

    Gymnasium simulators are changed in place, in this process and in worker processes; each attribute is set on the
    simulator or wrapper that already has it. The parameters of a JAX environment are part of its state, so the returned
    state must be used: `on_update` returns it. Both take effect at the next step and in training only, since evaluation
    has environments of its own.

    Args:
      where: the state that `on_update` is called with, the state of an environment, or a Gymnasium environment made by
        `make_env`, which is a run's own only until the run begins: from then on, only states reach its simulators.
      **settings: new values by name. Attributes of simulators must be picklable; a parameter of a JAX environment is a
        number for all environments, or an array with one row per environment.

    Returns:
      `where` with the new parameters; `where` itself for Gymnasium simulators.

    Raises:
      ValueError: the environment has neither Gymnasium simulators nor parameters, or it has no parameter of that name;
        or a value has the wrong shape or type, or is not finite.
      SimulatorError: a simulator does not have the attribute, or cannot set it; the run ends with a checkpoint.
    """
    from jaxtrpo.envs.gymnasium.environment import GymnasiumEnvironment
    from jaxtrpo.envs.gymnasium.masks import MaskedEnvironment
    from jaxtrpo.envs.gymnasium.simulators import hosts

    if isinstance(where, GymnasiumEnvironment | MaskedEnvironment):
        where.set_attributes(settings)
        return where
    for inner in ("actors", "env"):  # of the state of a run, and of its actors
        if _is_state(where) and hasattr(where, inner):
            old = getattr(where, inner)
            new = set_env(old, **settings)
            return where if new is old else where._replace(**{inner: new})
    physics: Any = getattr(where, "physics", None)
    parameters = getattr(physics, "parameters", None)
    if isinstance(parameters, Mapping):
        return where._replace(physics=physics._replace(parameters=_changed(parameters, settings)))
    while isinstance(physics, tuple) and physics:  # the handle comes first
        physics = physics[0]
    host = hosts.get(_host_number(physics))
    if host is None:
        raise ValueError(
            "set_env needs the state of a Gymnasium environment or of a JAX environment with parameters (not gps), "
            f"not {type_name(where)} without either; of tasks that jaxtrpo steps natively, use Gymnasium's own version "
            "(gymnasium:NAME)"
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
            raise ValueError(f"set_env: there is no parameter {name}; choose from {', '.join(parameters)}")
        old = parameters[name]
        try:
            given = np.asarray(value)
            if given.dtype.kind not in "biuf":
                raise TypeError
            with np.errstate(over="ignore", invalid="ignore"):
                cast = given.astype(old.dtype)
            exact = np.all(np.isfinite(cast)) if old.dtype.kind == "f" else np.all(cast == given)
            if not exact:
                raise TypeError
            new = np.full(old.shape, cast) if cast.ndim == 0 else _rows(cast, old.shape)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(
                f"set_env: {name}={short(value, 60)} must be a number, or an array of {old.size} numbers, of type "
                f"{old.dtype}, one row per environment; all of them finite"
            ) from None
        changed[name] = jax.device_put(new, old.sharding) if isinstance(old, jax.Array) else new
    return changed


def _rows(given: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Returns rows of all environments in a shape in which environments may be dealt out to actors.

    Raises:
      ValueError: there are other numbers of them, or rows have another shape.
    """
    if given.shape not in (shape, (int(np.prod(shape[:2])), *shape[2:])):
        raise ValueError
    return given.reshape(shape)


def _host_number(handle: Any) -> int:
    """Returns the number of the host in a handle, of which this process may hold only a part; 0 if it is none."""
    from jaxtrpo.envs.gymnasium.simulators import HANDLE_SIZE

    if getattr(handle, "dtype", None) != np.uint32:
        return 0
    shards = getattr(handle, "addressable_shards", None)
    array = np.asarray(shards[0].data if shards else handle)
    return int(array.flat[0]) if array.ndim and array.shape[-1] == HANDLE_SIZE else 0
