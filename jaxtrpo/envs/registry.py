"""Names of environments."""

from __future__ import annotations

from typing import Any

from jaxtrpo.envs.base import Environment
from jaxtrpo.envs.names import unknown_name

BRAX_PREFIX = "brax:"


def make_env(name: str, **options: Any) -> Environment:
    """Makes an environment.

    Args:
      name: a MuJoCo task of Gymnasium such as "HalfCheetah-v5", "brax:NAME" such as "brax:ant", or
        "brax:NAME/BACKEND" with the physics generalized, positional, spring or mjx.
      **options: for Brax: `backend`, which overrides the name's, and `episode_length`.

    Returns:
      The environment (see `jaxtrpo.envs.base.Environment`).

    Raises:
      ValueError: no such environment; the message lists near names.
    """
    if name.startswith(BRAX_PREFIX):
        from jaxtrpo.envs.brax import make_brax_env  # Brax takes seconds to import, so only who asks for it pays

        brax_name, _, backend = name.removeprefix(BRAX_PREFIX).partition("/")
        return make_brax_env(brax_name, **{**({"backend": backend} if backend else {}), **options})
    from jaxtrpo.envs.mujoco.environment import MujocoEnvironment
    from jaxtrpo.envs.mujoco.tasks import TASKS

    if name not in TASKS:
        raise ValueError(unknown_name(name, TASKS) + ", or brax:NAME")
    if options:
        raise ValueError(f"{name} takes no option {', '.join(options)}")
    return MujocoEnvironment(TASKS[name]())
