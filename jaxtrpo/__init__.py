"""Trust region policy optimisation as pure functions in JAX, on real MuJoCo and Brax.

    import jaxtrpo
    result = jaxtrpo.train("HalfCheetah-v5", total_steps=1_000_000, out="runs/cheetah")
    print(jaxtrpo.evaluate(result.policy).mean)

Names load on first use: importing the package starts neither JAX nor MuJoCo.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType  # `types` itself would be hidden by the submodule of that name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtrpo.config import Config
    from jaxtrpo.envs.mujoco.environment import MujocoEnvironment
    from jaxtrpo.envs.mujoco.mjx import MjxEnvironment
    from jaxtrpo.envs.mujoco.task import Task
    from jaxtrpo.envs.registry import make_env
    from jaxtrpo.evaluate import evaluate
    from jaxtrpo.many import train_many
    from jaxtrpo.runs.config_file import load_config
    from jaxtrpo.runs.policy_file import load_policy, save_policy
    from jaxtrpo.train import train

__version__ = "0.1.0"
__all__ = [
    "Config",
    "MjxEnvironment",
    "MujocoEnvironment",
    "Task",
    "__version__",
    "evaluate",
    "load_config",
    "load_policy",
    "make_env",
    "save_policy",
    "train",
    "train_many",
]

_HOMES = {
    "Config": "jaxtrpo.config",
    "MjxEnvironment": "jaxtrpo.envs.mujoco.mjx",
    "MujocoEnvironment": "jaxtrpo.envs.mujoco.environment",
    "Task": "jaxtrpo.envs.mujoco.task",
    "evaluate": "jaxtrpo.evaluate",
    "load_config": "jaxtrpo.runs.config_file",
    "load_policy": "jaxtrpo.runs.policy_file",
    "make_env": "jaxtrpo.envs.registry",
    "save_policy": "jaxtrpo.runs.policy_file",
    "train": "jaxtrpo.train",
    "train_many": "jaxtrpo.many",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """`train` and `evaluate` are functions here although submodules have the same names."""

    def __setattr__(self, name: str, value: object) -> None:
        # Importing a submodule binds it to its name in the package; not where a function has that name.
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
