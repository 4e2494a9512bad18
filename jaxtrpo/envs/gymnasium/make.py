"""Creation of an environment from a Gymnasium id or a function, with validation of user input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from jaxtrpo.config.checks import MOST_ENVS, require_number, require_whole
from jaxtrpo.envs.abilities import for_groups, has
from jaxtrpo.envs.base import Environment
from jaxtrpo.envs.gymnasium.environment import GymnasiumEnvironment
from jaxtrpo.envs.gymnasium.errors import SimulatorError, without_traceback
from jaxtrpo.envs.gymnasium.masks import MaskedEnvironment
from jaxtrpo.envs.gymnasium.other_python import plan_elsewhere
from jaxtrpo.envs.gymnasium.planning import How, Planned, plan_env
from jaxtrpo.envs.gymnasium.spec import LIMIT, NO_LIMIT, find_source


def make_gymnasium_env(
    source: str | Callable[..., gymnasium.Env],
    /,
    *,
    name: str | None = None,
    processes: int | None = None,
    groups: int = 1,
    timeout: float = 30.0,
    python: str | None = None,
    **options: Any,
) -> Environment:
    """Creates an environment from a `gymnasium.Env` or a `gymnasium.vector.VectorEnv`.

    A temporary simulator is created, reset and stepped first. A jaxtrpo environment that a
    function returns is used as it is.

    Args:
      source: registered id such as "CartPole-v1", optionally prefixed with "gymnasium:" or with the module that
        registers it ("module:Name-v0"); or a function that returns a `gymnasium.Env`, or a vector environment that
        always has the same number of environments.
      name: name of the environment; None: "gymnasium:" and the id or the qualified name of the function.
      processes: number of worker processes that step the environments; 0: the calling thread steps them; None: chosen
        by the measured duration of a step of the temporary simulator.
      groups: number of actors that step the environment concurrently, each a consecutive share of it.
      timeout: seconds that a worker process may take for a reset or step. XLA itself waits 40 seconds for an actor
        that is missing at a collective.
      python: path of another Python interpreter, such as "other/venv/bin/python", which runs the worker processes. It
        needs Gymnasium and the packages of the environment, but neither jaxtrpo nor JAX. `source` is then a name; a
        function in a module or file has the name "module:function" or "file.py:function".
      **options: keyword arguments for the environment's constructor or the function. `max_episode_steps` and
        `disable_env_checker` are those of `gymnasium.make`. If a function does not take `max_episode_steps`, its
        episodes are truncated here.

    Raises:
      ValueError: there is no such environment or it cannot be used; the message says why and where it failed.
    """
    if processes is not None:
        require_whole(0, MOST_ENVS, processes=processes)
    require_whole(1, groups=groups)
    require_number("a positive number of seconds", lambda value: value > 0, timeout=timeout)
    if options.get(LIMIT) not in (None, NO_LIMIT):
        require_whole(1, max_episode_steps=options[LIMIT])
    how = How(processes, groups, timeout)
    try:
        if python is not None:
            planned = plan_elsewhere(python, source, options, name, how)
        else:
            planned = plan_env(find_source(source, options, name), how, lambda env: has(env, Environment))
    except SimulatorError as error:
        raise ValueError(without_traceback(error)) from error.__cause__  # keeps the simulator's traceback
    if not isinstance(planned, Planned):
        return for_groups(planned, groups)
    made = GymnasiumEnvironment(planned.plan)
    return made if planned.unmasked is None else MaskedEnvironment(made, planned.unmasked)
