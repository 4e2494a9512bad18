"""The specification of a simulator: a registered Gymnasium id or a function of the user."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle
import gymnasium

from jaxtrpo.envs._support.names import unknown_name
from jaxtrpo.envs._support.parameters import takes
from jaxtrpo.envs.gymnasium.attributes import WRAPPERS
from jaxtrpo.envs.gymnasium.masks import ActionMask
from jaxtrpo.envs.modules import PREFIX, import_module, name_of_function, register

UNLIMITED = 2**31 - 1  # stands for "no time limit", in steps
LIMIT, NO_LIMIT = "max_episode_steps", -1  # keyword of `gymnasium.make`, and its value for "no time limit"
CHECKER = "disable_env_checker"  # another keyword of `gymnasium.make`


@dataclass(frozen=True)
class Source:
    """How to create simulators, in this process or in a worker; can be pickled with cloudpickle."""

    name: str
    spec: Any = None  # Gymnasium's EnvSpec of a registered id, as it was when looked up
    module: str | None = None  # module to import first, which registers the id
    maker: Callable[..., Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None  # time limit in steps, if `maker` does not take `max_episode_steps`
    masks: str | None = None  # convention by which it says which choices are legal (see `masks.find_masks`)
    # What this process has registered with Gymnasium, by id, for a `maker` that calls `gymnasium.make` in a worker.
    registered: Mapping[str, Any] = field(default_factory=dict)

    def make_single(self, *, limited: bool = False) -> Any:
        """Creates a `gymnasium.Env`.

        Args:
          limited: keep Gymnasium's `TimeLimit` wrapper. Otherwise it is left out, because the stepper applies the time
            limit, unless there are additional wrappers, which may read it.
        """
        env = self._make_single(limited=limited)
        return env if self.masks is None else ActionMask(env, self.masks)

    def limits(self) -> tuple[int, ...]:
        """Returns the time limits in steps that were asked for of single environments, and `UNLIMITED`."""
        passed = self.options.get(LIMIT) if self.maker is not None else None
        return tuple(int(limit) for limit in (self.limit, passed, UNLIMITED) if limit not in (None, NO_LIMIT))

    def _make_single(self, *, limited: bool) -> Any:
        self._import()
        if self.maker is not None:
            return self.maker(**self.options)
        spec = copy.deepcopy(self.spec)
        spec.order_enforce = False  # the stepper calls reset and step in order
        options = {CHECKER: True, **self.options}
        if not (limited or spec.additional_wrappers) or options.get(LIMIT) == NO_LIMIT:
            options.pop(LIMIT, None)
            spec.max_episode_steps = None  # before Gymnasium 1.0, `NO_LIMIT` would be a limit of -1 steps
        return gymnasium.make(spec, **options)

    def make_vector(self, num_envs: int) -> Any:
        """Creates a `gymnasium.vector.VectorEnv`; a function chooses the number of environments itself."""
        self._import()
        if self.maker is not None:
            env = self.maker(**self.options)
            if env.num_envs != num_envs:
                raise ValueError(
                    f"the function returned a vector environment of size {env.num_envs} after one of size {num_envs}"
                )
            return env
        options = {name: value for name, value in self.options.items() if name != CHECKER}  # for single environments
        if options.get(LIMIT) == NO_LIMIT:  # understood by `gymnasium.make` only
            options[LIMIT] = UNLIMITED
        return gymnasium.make_vec(self.spec, num_envs=num_envs, vectorization_mode="vector_entry_point", **options)

    def is_vector(self) -> bool:
        """Returns whether to use the vector environment that the id was registered with.

        It is not used if it calls JAX, if the id has additional wrappers, which the vector environment would lack, or
        if an option or a time limit is given that it does not accept. Before Gymnasium 1.1, which another interpreter
        may have, it does not say how it resets.
        """
        if not hasattr(gymnasium.vector, "AutoresetMode"):
            return False
        if self.spec is None or self.spec.vector_entry_point is None or self.spec.additional_wrappers:
            return False
        self._import()
        entry = _entry(self.spec.vector_entry_point)
        limited = LIMIT in self.options or self.spec.max_episode_steps is not None  # which `make_vec` passes on
        if uses_jax(entry) or (limited and not takes(entry, LIMIT, any_name=LIMIT not in self.options)):
            return False
        return all(name in (LIMIT, CHECKER) or takes(entry, name, any_name=True) for name in self.options)

    def _import(self) -> None:
        if self.module is not None:
            importlib.import_module(self.module)
        for name, spec in self.registered.items():
            gymnasium.registry.setdefault(name, spec)


def find_source(source: str | Callable[..., Any], options: Mapping[str, Any], name: str | None = None) -> Source:
    """Finds the source for a Gymnasium id or a function.

    Args:
      source: id such as "CartPole-v1", optionally prefixed with "gymnasium:" or with the module or file that registers
        it ("module:Name-v0"); or a function that returns an environment.
      options: keyword arguments for the environment's constructor or the function.
      name: name of the environment; None: "gymnasium:" and the id or the qualified name of the function.

    Raises:
      ValueError: there is no such id, or its module or package cannot be imported.
    """
    if callable(source):
        own, limit = name_of_function(source), None
        if LIMIT in options and not takes(source, LIMIT):
            options = dict(options)
            limit = options.pop(LIMIT)
            if limit == NO_LIMIT:
                raise ValueError(
                    f"max_episode_steps={limit}: only gymnasium.make can remove a time limit; omit it for "
                    f"{own.removeprefix(PREFIX)}"
                )
        return Source(name or own, maker=source, options=options, limit=limit, registered=_registered_here())
    full_id = source.removeprefix(PREFIX)
    module, _, env_id = full_id.rpartition(":")
    if module:
        module = import_module(source, module).__name__
    elif env_id not in gymnasium.registry:
        module = register(env_id)
    if env_id not in gymnasium.registry:
        may_be_function = "" if "-" in env_id else "; if it is a function of your own, give the function itself"
        raise ValueError(unknown_name(env_id, gymnasium.registry, prefix=PREFIX) + may_be_function)
    return Source(name or PREFIX + full_id, spec=gymnasium.registry[env_id], module=module or None, options=options)


def time_limit(env: Any) -> int:
    """Returns the steps after which an episode is truncated, by the `TimeLimit` wrappers or else the specification."""
    limits = []
    inner = env
    while isinstance(inner, gymnasium.Wrapper):
        if isinstance(inner, gymnasium.wrappers.TimeLimit):
            limits.append(inner._max_episode_steps)
        inner = inner.env
    spec = getattr(env, "spec", None)
    if not limits and spec is not None and spec.max_episode_steps:
        limits.append(spec.max_episode_steps)
    return int(min([*limits, UNLIMITED]))


def time_limit_of_vector(env: Any) -> int:
    """Returns the time limit of a vector environment: its own, the one passed to it, or the registered one."""
    spec = getattr(env, "spec", None)
    arguments = {} if spec is None else spec.kwargs
    limit = getattr(env.unwrapped, LIMIT, None) or arguments.get(LIMIT) or getattr(spec, LIMIT, None)
    return int(min(limit or UNLIMITED, UNLIMITED)) if limit != NO_LIMIT else UNLIMITED


def calls_jax(env: Any) -> bool:
    """Returns whether an environment or one of its wrappers seems to use JAX.

    A step that uses JAX can deadlock when compiled code waits for that step.
    """
    while True:
        if uses_jax(type(env)):
            return True
        if isinstance(env, gymnasium.vector.SyncVectorEnv):
            return any(calls_jax(each) for each in env.envs)
        if not isinstance(env, WRAPPERS):
            return False
        env = env.env


def uses_jax(thing: Any) -> bool:
    """Returns whether the modules that define a class and its bases, or a function, import JAX or something of it."""
    modules = [part.__module__ for part in getattr(thing, "__mro__", (thing,))]
    return any(_is_of_jax(value) for name in modules for value in vars(sys.modules.get(name, sys)).values())


def _is_of_jax(value: Any) -> bool:
    homes = [value.__name__] if isinstance(value, ModuleType) else [type(value).__module__]
    if isinstance(value, type | FunctionType):
        homes.append(value.__module__)
    return any(isinstance(home, str) and home.partition(".")[0] in ("jax", "jaxlib") for home in homes)


def _registered_here() -> dict[str, Any]:
    """Returns the specifications in Gymnasium's registry that are not its own and can be sent to another process."""
    return {name: spec for name, spec in gymnasium.registry.items() if _is_foreign(spec)}


def _is_foreign(spec: Any) -> bool:
    entries = [spec.entry_point, getattr(spec, "vector_entry_point", None)]
    if all(each is None or (isinstance(each, str) and each.startswith("gymnasium.")) for each in entries):
        return False
    try:
        cloudpickle.dumps(spec)
    except Exception:  # whatever an object raises that cannot be pickled
        return False
    return True


def _entry(entry_point: Any) -> Any:
    if callable(entry_point):
        return entry_point
    module, _, attribute = entry_point.partition(":")
    return getattr(importlib.import_module(module), attribute)
