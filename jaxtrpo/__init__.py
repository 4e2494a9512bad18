"""Trust-region and actor-critic reinforcement learning in JAX, written as pure functions.

    import jaxtrpo
    result = jaxtrpo.train("HalfCheetah-v5", total_steps=1_000_000, out="runs/cheetah")
    print(jaxtrpo.evaluate(result.policy).mean)

Names load on first use: importing the package starts neither JAX nor MuJoCo.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtrpo.algorithms import a2c, a3c, dqn, gps, naf, npg, pg, ppo, sac, trpo, trpo_penalty, trpo_replay
    from jaxtrpo.config import Config
    from jaxtrpo.envs.mujoco.environment import MujocoEnvironment
    from jaxtrpo.envs.mujoco.mjx import MjxEnvironment
    from jaxtrpo.envs.mujoco.task import Task
    from jaxtrpo.envs.parameters import set_env
    from jaxtrpo.envs.registry import make_env
    from jaxtrpo.rollout.evaluation import evaluate
    from jaxtrpo.runs.config_file import load_config
    from jaxtrpo.runs.policy_file import load_policy, save_policy
    from jaxtrpo.runs.recipes import load_recipe
    from jaxtrpo.training.record import Result
    from jaxtrpo.training.train import train
    from jaxtrpo.training.train_many import train_many

__version__ = "0.1.0"
__all__ = [
    "Config",
    "MjxEnvironment",
    "MujocoEnvironment",
    "Result",
    "Task",
    "__version__",
    "a2c",
    "a3c",
    "dqn",
    "evaluate",
    "gps",
    "load_config",
    "load_policy",
    "load_recipe",
    "make_env",
    "naf",
    "npg",
    "pg",
    "ppo",
    "sac",
    "save_policy",
    "set_env",
    "train",
    "train_many",
    "trpo",
    "trpo_penalty",
    "trpo_replay",
]

_HOMES = {  # modules of all names that are not algorithms
    "Config": "jaxtrpo.config",
    "MjxEnvironment": "jaxtrpo.envs.mujoco.mjx",
    "MujocoEnvironment": "jaxtrpo.envs.mujoco.environment",
    "Result": "jaxtrpo.training.record",
    "Task": "jaxtrpo.envs.mujoco.task",
    "evaluate": "jaxtrpo.rollout.evaluation",
    "load_config": "jaxtrpo.runs.config_file",
    "load_policy": "jaxtrpo.runs.policy_file",
    "load_recipe": "jaxtrpo.runs.recipes",
    "make_env": "jaxtrpo.envs.registry",
    "save_policy": "jaxtrpo.runs.policy_file",
    "set_env": "jaxtrpo.envs.parameters",
    "train": "jaxtrpo.training.train",
    "train_many": "jaxtrpo.training.train_many",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES.get(name, "jaxtrpo.algorithms")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
