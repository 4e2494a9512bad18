"""Where simulators come from: a registered id of Gymnasium, or a function of the user."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import gymnasium

from jaxtrpo.config.messages import described
from jaxtrpo.envs._support.names import unknown_name

PREFIX = "gymnasium:"
UNLIMITED = 2**31 - 1  # steps; the time limit of an environment that has none
LIMIT, NO_LIMIT = "max_episode_steps", -1  # keyword of `gymnasium.make`, and its value for no time limit at all
CHECKER = "disable_env_checker"  # its other keyword


@dataclass(frozen=True)
class Source:
    """How to make simulators, in this process or in another: cloudpickle can carry it."""

    name: str
    spec: Any = None  # gymnasium's EnvSpec of a registered id, with what was registered when it was looked up
    module: str | None = None  # to import before
    maker: Callable[..., Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None  # steps; of a function that does not take `max_episode_steps` itself

    def make_single(self, *, limited: bool = False) -> Any:
        """A new `gymnasium.Env`.

        Args:
          limited: with the time limit that Gymnasium would keep. Otherwise it is ours to keep, unless a wrapper around
            Gymnasium's may look at it.
        """
        if self.maker is not None:
            return self.maker(**self.options)
        self._import()
        spec = copy.deepcopy(self.spec)
        spec.order_enforce = False  # we keep the order
        options = {CHECKER: True, **self.options}
        if not (limited or spec.additional_wrappers):
            options[LIMIT] = NO_LIMIT
        return gymnasium.make(spec, **options)

    def make_vector(self, num_envs: int) -> Any:
        """A new `gymnasium.vector.VectorEnv`."""
        self._import()
        options = {name: value for name, value in self.options.items() if name != CHECKER}  # which single ones have
        if options.get(LIMIT) == NO_LIMIT:  # only `gymnasium.make` knows what that means
            options[LIMIT] = UNLIMITED
        return gymnasium.make_vec(self.spec, num_envs=num_envs, vectorization_mode="vector_entry_point", **options)

    def is_vector(self) -> bool:
        """Whether the id was registered with a vector environment, and one that does not call JAX.

        A vector environment comes without the wrappers that the id was registered with: where there are some, it is
        another environment. So it is where it has no way to be told the time limit that is asked for.
        """
        if self.spec is None or self.spec.vector_entry_point is None or self.spec.additional_wrappers:
            return False
        self._import()
        entry = _entry(self.spec.vector_entry_point)
        return not uses_jax(entry) and (LIMIT not in self.options or _takes(entry, LIMIT))

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
        limit = None
        if LIMIT in options and not _takes(source, LIMIT):
            options = dict(options)
            limit = options.pop(LIMIT)
            if limit == NO_LIMIT:
                raise ValueError(
                    f"max_episode_steps={limit}: only gymnasium.make can leave a time limit out, not {qualified}"
                )
        return Source(name or PREFIX + qualified, maker=source, options=options, limit=limit)
    full_id = source.removeprefix(PREFIX)
    module, _, env_id = full_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except Exception as error:  # of the user's own code
            absent = isinstance(error, ModuleNotFoundError) and module.startswith(error.name or "")
            why = str(error) if absent else described(error)
            raise ValueError(f"{source}: the module {module} cannot be imported: {why}") from error
    if env_id not in gymnasium.registry:
        raise ValueError(unknown_name(env_id, gymnasium.registry, prefix=PREFIX))
    return Source(name or PREFIX + full_id, spec=gymnasium.registry[env_id], module=module or None, options=options)


def time_limit(env: Any) -> int:
    """Steps after which an environment's episode is truncated: what its wrappers say, or else its own specification."""
    limits = []
    inner = env
    while isinstance(inner, gymnasium.Wrapper):
        if isinstance(inner, gymnasium.wrappers.TimeLimit):
            limits.append(inner._max_episode_steps)
        inner = inner.env
    own = getattr(env, "spec", None)
    if not limits and own is not None and own.max_episode_steps:
        limits.append(own.max_episode_steps)
    return int(min([*limits, UNLIMITED]))


def time_limit_of_vector(env: Any) -> int:
    """The same of a vector environment: what it says itself, or what it was made with, or what was registered."""
    spec = getattr(env, "spec", None)
    made_with = {} if spec is None else spec.kwargs
    found = getattr(env.unwrapped, LIMIT, None) or made_with.get(LIMIT) or getattr(spec, LIMIT, None)
    return int(min(found or UNLIMITED, UNLIMITED))


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


def _takes(function: Callable[..., Any], keyword: str) -> bool:
    """Whether a function has a parameter of that name, and not only for any name."""
    try:
        return keyword in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some that are written in C do not tell
        return False


def _entry(entry_point: Any) -> Any:
    if callable(entry_point):
        return entry_point
    module, _, attribute = entry_point.partition(":")
    return getattr(importlib.import_module(module), attribute)
