"""Names of the form "module:NAME", and packages that register their environments with Gymnasium when imported."""

from __future__ import annotations

import difflib
import functools
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxtrpo.config.checks import expanded
from jaxtrpo.config.messages import described
from jaxtrpo.envs._support.names import unknown_name

PREFIX = "gymnasium:"
PROGRAMS = ("brax:", "gymnax:", "mjx:", "playground:")  # of which jaxtrpo imports the packages
FILE_ENDING = ".py"
# Modules that register environments, with the beginnings of their names. The packages are named like the modules, with
# hyphens.
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "ale_py": ("ALE/",),
    "minigrid": ("MiniGrid-", "BabyAI-"),
    "miniworld": ("MiniWorld-",),
    "gymnasium_robotics": (
        "Fetch",
        "HandReach",
        "HandManipulate",
        "PointMaze",
        "AntMaze",
        "AdroitHand",
        "FrankaKitchen",
    ),
    "panda_gym": ("Panda",),
    "highway_env": (
        *("highway-", "merge-", "roundabout-", "parking-", "intersection-", "racetrack-", "exit-", "lane-keeping-"),
        *("two-way-", "u-turn-"),
    ),
    "mo_gymnasium": (
        *("mo-", "deep-sea-treasure-", "resource-gathering-", "minecart-", "four-room-", "fruit-tree-", "fishwood-"),
        *("breakable-bottles-", "water-reservoir-"),
    ),
}
_chosen: set[str] = set()  # names that were given in this process, not read from a policy


def split(name: str) -> tuple[str, str] | None:
    """Returns the module, or the path of a .py file, and the name in it; None if `name` says no module."""
    if name.startswith(PROGRAMS):
        return None
    module, colon, inner = name.removeprefix(PREFIX).rpartition(":")
    return (module, inner) if colon else None


def is_maker(env: Any) -> bool:
    """Whether what a person may give as an environment is a class or function that makes environments."""
    return isinstance(env, type) or (callable(env) and not hasattr(env, "reset"))


def name_of_function(function: Any) -> str:
    """Returns the name of the environments that a function of the user's makes."""
    while isinstance(function, functools.partial):
        function = function.func
    return PREFIX + getattr(function, "__qualname__", type(function).__qualname__)


def module_of(name: str) -> str | None:
    """Returns the module that a name chooses, unless the name was given before, or the module has registered the id."""
    found = split(name)
    if found is None or name in _chosen:
        return None
    module, inner = found
    gymnasium = sys.modules.get("gymnasium")
    registered = gymnasium is not None and inner in gymnasium.registry and module in sys.modules
    return None if registered else module


def was_chosen(name: str) -> bool:
    """Returns whether the module of this name was imported because the name was given in this process."""
    return name in _chosen


def import_module(name: str, module: str) -> ModuleType:
    """Imports the module, or the .py file, of an environment's name.

    Raises:
      ValueError: it cannot be imported.
    """
    try:
        found = _import_file(Path(module)) if module.endswith(FILE_ENDING) else importlib.import_module(module)
    except Exception as error:  # user code may raise anything
        is_missing = isinstance(error, ModuleNotFoundError) and module.startswith(error.name or "")
        why = str(error) if is_missing or isinstance(error, FileNotFoundError) else described(error)
        raise ValueError(f"{name}: the module {module} cannot be imported: {why}") from error
    _chosen.add(name)
    return found


def _import_file(path: Path) -> ModuleType:
    """Imports a file as a module of its name, which worker processes then find, too."""
    path = expanded(path).resolve()
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    search_first(path.parent)
    module = importlib.import_module(path.stem)
    if Path(getattr(module, "__file__", None) or "").resolve() != path:
        raise ImportError(f"another module is named {path.stem}; rename the file")
    return module


def search_first(directory: Path) -> None:
    """Lets Python find modules in a directory, before those of the same name elsewhere."""
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def value_of(name: str, module: str, inner: str) -> Any:
    """Imports a module and returns the environment or function `inner` in it; None if it registers that id instead.

    Raises:
      ValueError: the module cannot be imported, or has and registers nothing of that name.
    """
    import gymnasium

    found = import_module(name, module)
    if inner in gymnasium.registry:
        return None
    value = getattr(found, inner, None)
    if value is not None:
        return value
    if not inner.isidentifier():
        raise ValueError(unknown_name(inner, gymnasium.registry, prefix=PREFIX))
    raise ValueError(f"{name}: the module {module} has no {inner}{_functions(found, inner)}")


def _functions(module: ModuleType, name: str) -> str:
    """Returns a hint that ends the message about a missing function."""
    own = functions_of(module)
    near = difflib.get_close_matches(name, own, n=2) or own[:2]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def functions_of(module: ModuleType) -> list[str]:
    """Returns the names of the public functions and classes that a module defines."""
    named = vars(module).items()
    return [key for key, value in named if callable(value) and value.__module__ == module.__name__ and key[0] != "_"]


def package_of(env_id: str) -> str | None:
    """Returns the module of a known package whose environments have names like this one."""
    return next((module for module, starts in PACKAGES.items() if env_id.startswith(starts)), None)


def register(env_id: str) -> str | None:
    """Imports the known package that registers an id, if there is one, and returns its module.

    Raises:
      ValueError: the package is not installed or cannot be imported.
    """
    module = package_of(env_id)
    if module is None:
        return None
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.replace("_", "-") if error.name == module else error.name
        raise ValueError(f"{env_id} needs the package {package}: pip install {package}") from error
    except Exception as error:
        raise ValueError(f"{env_id}: the module {module} cannot be imported: {described(error)}") from error
    return module
