"""Where simulators come from: a registered id of Gymnasium, or a function of the user."""

from __future__ import annotations

import copy
import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import gymnasium

from jaxtrpo.envs.names import unknown_name

PREFIX = "gymnasium:"
UNLIMITED = 2**31 - 1  # steps; the time limit of an environment that has none


@dataclass(frozen=True)
class Source:
    """How to make simulators, in this process or in another: cloudpickle can carry it."""

    name: str
    spec: Any = None  # gymnasium's EnvSpec of a registered id, with what was registered when it was looked up
    module: str | None = None  # to import before
    maker: Callable[..., Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def make_single(self) -> Any:
        """A new `gymnasium.Env`."""
        if self.maker is not None:
            return self.maker(**self.options)
        self._import()
        spec = copy.deepcopy(self.spec)
        spec.order_enforce = False  # we keep the order
        # The time limit is ours to keep as well, unless a wrapper around the one of Gymnasium may look at it.
        limit = {} if spec.additional_wrappers else {"max_episode_steps": -1}
        return gymnasium.make(spec, disable_env_checker=True, **limit, **self.options)

    def make_vector(self, num_envs: int) -> Any:
        """A new `gymnasium.vector.VectorEnv`."""
        self._import()
        return gymnasium.make_vec(self.spec, num_envs=num_envs, vectorization_mode="vector_entry_point", **self.options)

    def is_vector(self) -> bool:
        """Whether the id was registered with a vector environment, and one that does not call JAX.

        A vector environment comes without the wrappers that the id was registered with: where there are some, it is
        another environment.
        """
        if self.spec is None or self.spec.vector_entry_point is None or self.spec.additional_wrappers:
            return False
        self._import()
        return not uses_jax(_entry(self.spec.vector_entry_point))

    def _import(self) -> None:
        if self.module is not None:
            importlib.import_module(self.module)


def find_source(source: str | Callable[..., Any], options: Mapping[str, Any], name: str | None = None) -> Source:
    """The source that a user names.

    Args:
      source: an id such as "CartPole-v1", with "gymnasium:" in front or not, or "module:Name-v0", of which the module
        registers the id; or a function that returns an environment.
      options: for the environment's constructor, or the function.
      name: of the environment; None: "gymnasium:" and the id, or the qualified name of the function.

    Raises:
      ValueError: no such id, or its module cannot be imported.
    """
    if callable(source):
        function = source
        while isinstance(function, functools.partial):
            function = function.func
        qualified = getattr(function, "__qualname__", type(function).__qualname__)
        return Source(name or PREFIX + qualified, maker=source, options=options)
    full_id = source.removeprefix(PREFIX)
    module, _, env_id = full_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ValueError(f"{source}: the module {module} cannot be imported: {error}") from error
    if env_id not in gymnasium.registry:
        raise ValueError(unknown_name(env_id, gymnasium.registry, prefix=PREFIX))
    return Source(name or PREFIX + full_id, spec=gymnasium.registry[env_id], module=module or None, options=options)


def time_limit(env: Any, spec: Any = None) -> int:
    """Steps after which an environment's episode is truncated."""
    limits = [] if spec is None or spec.max_episode_steps is None else [spec.max_episode_steps]
    inner = env
    while isinstance(inner, gymnasium.Wrapper):
        if isinstance(inner, gymnasium.wrappers.TimeLimit):
            limits.append(inner._max_episode_steps)
        inner = inner.env
    own = getattr(env, "spec", None)
    if not limits and own is not None and own.max_episode_steps:
        limits.append(own.max_episode_steps)
    return int(min([*limits, UNLIMITED]))


def calls_jax(env: Any) -> bool:
    """Whether an environment or one of its wrappers seems to compute with JAX.

    Inside compiled code that waits for the step it could wait for JAX in turn, for ever.
    """
    while True:
        if uses_jax(type(env)):
            return True
        if not isinstance(env, gymnasium.Wrapper):
            return False
        env = env.env


def uses_jax(thing: Any) -> bool:
    """Whether the modules in which a class and its bases, or a function, are written import JAX."""
    modules = [part.__module__ for part in getattr(thing, "__mro__", (thing,))]
    return any(
        isinstance(value, ModuleType) and value.__name__.partition(".")[0] == "jax"
        for name in modules
        for value in vars(sys.modules.get(name, sys)).values()
    )


def _entry(entry_point: Any) -> Any:
    if callable(entry_point):
        return entry_point
    module, _, attribute = entry_point.partition(":")
    return getattr(importlib.import_module(module), attribute)
