"""Names under which files know environments."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxtrpo.config.environment import options_string
from jaxtrpo.envs.abilities import MADE_WITH, made_with
from jaxtrpo.envs.base import Environment
from jaxtrpo.envs.modules import PREFIX, PROGRAMS, is_maker, name_of_function, package_of, split, was_chosen

OURS = __name__.partition(".")[0]  # package of environments other than the user's
OF_YOUR_OWN = " (own)"  # ends the names of environments that are not those which are made by these names


class MadeWith(NamedTuple):
    """What `make_env` was given beside the name of an environment, as settings of a run."""

    max_episode_steps: int | None
    env_options: str | None


def name_in_files(env: Any, made: Environment) -> str:
    """Returns the name under which files know an environment, which `make_env` never makes into another one.

    What a function or a module of the user's makes is known by their name, whatever it is called itself: it may be
    a task of ours that was changed.

    Args:
      env: what a person gave as an environment.
      made: what it has made.
    """
    if isinstance(env, str):
        return env if split(env) else made.name
    if is_maker(env):
        return name_of_function(env)
    return made.name + OF_YOUR_OWN if made_with(env) is None and is_known(made.name) else made.name


def remember_settings(name: Any, made: Environment, max_episode_steps: int | None, options: Mapping[str, Any]) -> None:
    """Notes in an environment what `make_env` was given, for `name_in_files` and for the settings in files."""
    is_ours = type(made).__module__.partition(".")[0] == OURS
    # What the user's code made itself keeps its own name, and the settings with which it called `make_env`.
    if is_ours and made_with(made) is None and made.name == name_in_files(name, made):
        with contextlib.suppress(ValueError):  # an option that files cannot tell
            setattr(made, MADE_WITH, MadeWith(max_episode_steps, options_string(options)))


def is_known(name: str) -> bool:
    """Whether a name that was not given here, but read from a policy, is that of an environment we can make."""
    from jaxtrpo.envs.mujoco.tasks import TASKS

    if name.endswith(OF_YOUR_OWN):
        return False
    if name.startswith(PROGRAMS) or name in TASKS:
        return True
    import gymnasium

    found = split(name)
    env_id = name.removeprefix(PREFIX) if found is None else found[1]
    of_package = "-" in env_id and package_of(env_id) is not None  # which the name of a function never has
    return env_id in gymnasium.registry or of_package or was_chosen(name)
