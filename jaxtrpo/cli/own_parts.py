"""Algorithms, policies, critics and rules of the user, named on the command line: `--policy my_module:MyPolicy`.

Only names that were typed get here: a config.json or a checkpoint never decides which module is imported.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxtrpo.config import Config
from jaxtrpo.config.checks import expanded
from jaxtrpo.config.messages import described, type_name
from jaxtrpo.config.specs import KINDS, literal_or_word, parse, split_own
from jaxtrpo.envs.modules import search_first


def with_own_parts(config: Config) -> dict[str, Any]:
    """Returns all settings by name, in which typed names of the user's own parts are replaced by the parts.

    Raises:
      ValueError: there is no such module or name, it fails, or it is not a part of that kind.
    """
    settings = dict(vars(config))
    for kind in KINDS:
        if settings[kind] is not None and split_own(settings[kind]):
            settings[kind] = part(kind, settings[kind])
    return settings


def part(kind: str, text: str) -> Any:
    """Returns the part that a typed text describes.

    Args:
      kind: "algorithm", "adapt", "critic" or "policy".
      text: spec string of a built-in part, or `MODULE:NAME`, `FILE.py:NAME` or `MODULE:NAME(setting=value)`. Modules
        are searched in the current directory first. The name is that of a part, or of a class or function that makes
        one.

    Raises:
      ValueError: as for `with_own_parts`, or as for `parse`.
    """
    own = split_own(text)
    if own is None:
        return parse(kind, text)
    place, call = own
    try:
        name, settings = _name_and_settings(call)
        value = _named(_module(place), place, name)
        if inspect.isclass(value) or inspect.isroutine(value) or isinstance(value, functools.partial):
            value = _call(value, name, settings)
        elif settings:
            raise _Wrong(f"{name} is not a class or function, so it takes no settings")
        _require_kind(kind, value)
    except _Wrong as error:
        raise ValueError(f"{kind}={text!r}: {error}") from error
    except Exception as error:  # code of the user may raise anything
        raise ValueError(f"{kind}={text!r}: {described(error)}") from error
    return value


def network(text: str | None) -> Any:
    """Returns the network that was typed to load a policy with, if any."""
    return None if text is None else part("policy", text)


class _Wrong(ValueError):
    """What the user typed is wrong, as the message says; errors in the user's code also need their place."""


def _name_and_settings(call: str) -> tuple[str, dict[str, Any]]:
    """Returns the name in `NAME` or `NAME(setting=value)`, and the settings."""
    node = ast.parse(call, mode="eval").body
    if isinstance(node, ast.Name):
        return node.id, {}
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)  # see `split_own`
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        raise _Wrong(f"{node.func.id} takes its settings by name, such as {node.func.id}(size=64)")
    try:
        return node.func.id, {str(keyword.arg): literal_or_word(keyword.value) for keyword in node.keywords}
    except ValueError:
        raise _Wrong(f"settings of {node.func.id} must be Python literals or words") from None


def _call(make: Callable[..., Any], name: str, settings: dict[str, Any]) -> Any:
    try:
        inspect.signature(make).bind(**settings)
    except TypeError as error:
        raise _Wrong(f"{name}: {error}") from None
    return make(**settings)


def _module(place: str) -> ModuleType:
    if place.endswith(".py"):
        path = expanded(place).absolute()
        if not path.is_file():
            raise _Wrong(f"no such file: {place}")
        return _module_in(path)
    search_first(Path.cwd())
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise  # of a module that the user's module imports
        raise _Wrong(f"no module {place} in this directory or among the installed packages") from error


@functools.cache  # parts of one file share its classes
def _module_in(path: Path) -> ModuleType:
    search_first(path.parent)  # for modules beside it
    name = f"{path.stem} of {path.parent}"  # not that of an installed module
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _named(module: ModuleType, place: str, name: str) -> Any:
    if not hasattr(module, name):
        there = [each for each, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        raise _Wrong(f"{place} has no {name}; it has {', '.join(there) or 'no classes or functions of its own'}")
    return getattr(module, name)


def _require_kind(kind: str, value: Any) -> None:
    from jaxtrpo.adapt import Rule
    from jaxtrpo.algorithms.algorithm import Algorithm
    from jaxtrpo.critics.critic import CriticMaker
    from jaxtrpo.policies.custom import policy_maker

    if kind == "policy":
        try:
            policy_maker(value)
        except ValueError:
            raise _Wrong(f"it must be or return a flax module, not a value of type {type_name(value)}") from None
        return
    wanted = {"algorithm": Algorithm, "adapt": Rule, "critic": CriticMaker}[kind]
    if not isinstance(value, wanted):
        raise _Wrong(f"it must be or return a value of type {wanted.__name__}, not {type_name(value)}")
