"""Names of environments."""

from __future__ import annotations

from jaxtrpo.envs.base import Environment
from jaxtrpo.envs.names import unknown_name

BRAX_PREFIX = "brax:"


def make_env(name: str, **options: object) -> Environment:
    """Makes an environment.

    Args:
      name: a MuJoCo task of Gymnasium such as "HalfCheetah-v5", or "brax:NAME" such as "brax:ant".
      **options: for Brax: `backend` ("generalized", "positional", "spring" or "mjx") and `episode_length`.

    Returns:
      The environment (see `jaxtrpo.envs.base.Environment`).

    Raises:
      ValueError: no such environment; the message lists near names.
    """
    if name.startswith(BRAX_PREFIX):
        from jaxtrpo.envs.brax import make_brax_env  # Brax takes seconds to import, so only who asks for it pays

        return make_brax_env(name.removeprefix(BRAX_PREFIX), **options)
    from jaxtrpo.envs.mujoco.environment import MujocoEnvironment
    from jaxtrpo.envs.mujoco.tasks import TASKS

    if name not in TASKS:
        raise ValueError(unknown_name(name, TASKS) + ", or brax:NAME")
    if options:
        raise ValueError(f"{name} takes no option {', '.join(options)}")
    return MujocoEnvironment(TASKS[name]())
