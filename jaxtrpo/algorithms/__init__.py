"""Algorithm factories, loaded on first use: `from jaxtrpo.algorithms import ppo`.

Each factory returns an `Algorithm` and lives in a module or package of the same name.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtrpo.algorithms.a2c import a2c
    from jaxtrpo.algorithms.a3c import a3c
    from jaxtrpo.algorithms.dqn import dqn
    from jaxtrpo.algorithms.gps.gps import gps
    from jaxtrpo.algorithms.naf import naf
    from jaxtrpo.algorithms.npg import npg
    from jaxtrpo.algorithms.pg import pg
    from jaxtrpo.algorithms.ppo import ppo
    from jaxtrpo.algorithms.sac import sac
    from jaxtrpo.algorithms.trpo import trpo
    from jaxtrpo.algorithms.trpo_penalty import trpo_penalty
    from jaxtrpo.algorithms.trpo_replay.trpo_replay import trpo_replay

__all__ = ["a2c", "a3c", "dqn", "gps", "naf", "npg", "pg", "ppo", "sac", "trpo", "trpo_penalty", "trpo_replay"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{name}"), name)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """Keeps the import of a submodule from replacing the factory of the same name."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
