"""Names of environments."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxtrpo.config.checks import require_whole
from jaxtrpo.config.messages import short, type_name
from jaxtrpo.envs._support.names import unknown_name
from jaxtrpo.envs.abilities import abandon, for_groups, is_jax_program
from jaxtrpo.envs.base import Environment, has_time_limit

if TYPE_CHECKING:
    from jaxtrpo.envs.mujoco.task import Task

GYMNASIUM_PREFIX = "gymnasium:"


class Kind(NamedTuple):
    """A kind of environment that a prefix of the name chooses."""

    # (name without the prefix, time limit in steps or None, options) -> environment. Packages are imported there, by
    # whoever asks for them: Brax alone takes seconds.
    make: Callable[[str, int | None, dict[str, Any]], Environment]
    is_program: bool  # whether its environments are JAX programs


def _brax(name: str, steps: int | None, options: dict[str, Any]) -> Environment:
    from jaxtrpo.envs.brax import make_brax_env

    shown = f"brax:{name}"
    name, _, backend = name.partition("/")
    if backend and options.get("backend", backend) != backend:
        raise ValueError(f"{shown} and backend={options['backend']!r} contradict each other; give only one of them")
    named = {"backend": backend} if backend else {}
    options = {**named, **_with_limit(shown, "episode_length", steps, options)}
    _require_options(shown, options, ("backend", "episode_length"))
    return make_brax_env(name, **options)


def _gymnax(name: str, steps: int | None, options: dict[str, Any]) -> Environment:
    from jaxtrpo.envs.gymnax import make_gymnax_env

    return make_gymnax_env(name, **_with_limit(f"gymnax:{name}", "max_steps_in_episode", steps, options))


def _playground(name: str, steps: int | None, options: dict[str, Any]) -> Environment:
    from jaxtrpo.envs.playground import make_playground_env

    return make_playground_env(name, **_with_limit(f"playground:{name}", "episode_length", steps, options))


def _mjx(name: str, steps: int | None, options: dict[str, Any]) -> Environment:
    from jaxtrpo.envs.mujoco.mjx import MjxEnvironment
    from jaxtrpo.envs.mujoco.tasks import TASKS

    if name not in TASKS:
        raise ValueError(unknown_name(name, TASKS, prefix="mjx:"))
    _require_options(f"mjx:{name}", options, ("impl",))
    return MjxEnvironment(_limited(TASKS[name](), steps), **options)


KINDS: Mapping[str, Kind] = {
    "brax:": Kind(_brax, is_program=True),
    "gymnax:": Kind(_gymnax, is_program=True),
    "mjx:": Kind(_mjx, is_program=True),
    "playground:": Kind(_playground, is_program=True),
}


def make_env(name: str | Callable[..., Any], *, max_episode_steps: int | None = None, **options: Any) -> Environment:
    """Makes an environment.

    Args:
      name: a MuJoCo task of Gymnasium such as "HalfCheetah-v5", which we step ourselves; "brax:NAME" such as
        "brax:ant", or "brax:NAME/BACKEND" with the physics generalized, positional, spring or mjx; "gymnax:NAME" such
        as "gymnax:CartPole-v1"; "mjx:NAME" for a MuJoCo task of ours on MJX; "playground:NAME" such as
        "playground:CheetahRun"; any other id of Gymnasium such as "CartPole-v1", with the module that registers it in
        front where that is needed ("module:Name-v0"); "gymnasium:ID" for Gymnasium's own version of what we have too;
        or a function that returns a `gymnasium.Env`.
      max_episode_steps: time limit in steps; None: the environment's own, if it has one.
      **options: `groups`, the number of actors that will step it; for Brax: `backend`, if the name says none; for
        gymnax: its parameters; for MJX: `impl` (see `jaxtrpo.MjxEnvironment`); for Playground: entries of its
        configuration; for Gymnasium: `processes` and `timeout` (see `jaxtrpo.envs.gymnasium.make.make_gymnasium_env`),
        and what `gymnasium.make` or the environment's constructor takes.

    Returns:
      The environment (see `jaxtrpo.envs.base.Environment`).

    Raises:
      ValueError: no such environment, in which case the message lists near names; or one that cannot be used.
    """
    if not isinstance(name, str) and (not callable(name) or hasattr(name, "reset")) and not isinstance(name, type):
        raise ValueError(f"name={short(name, 60)} must be {_what_works(name)}")
    limit = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
    if callable(name) or name.startswith(GYMNASIUM_PREFIX):
        return _from_gymnasium(name, **limit, **options)
    ours = {option: value for option, value in options.items() if option != "groups"}  # who steps ours does not matter
    for prefix, kind in KINDS.items():
        if name.startswith(prefix):
            return kind.make(name.removeprefix(prefix), max_episode_steps, ours)
    from jaxtrpo.envs.mujoco.tasks import TASKS

    if name in TASKS:
        _require_options(name, ours, (), f"; {GYMNASIUM_PREFIX}{name} takes what Gymnasium's constructor does")
        from jaxtrpo.envs.mujoco.environment import MujocoEnvironment

        return MujocoEnvironment(_limited(TASKS[name](), max_episode_steps))
    import gymnasium

    if name in gymnasium.registry or ":" in name:
        return _from_gymnasium(name, name=name, **limit, **options)
    *kinds, last = (f"{prefix}NAME" for prefix in KINDS)
    raise ValueError(f"{unknown_name(name, TASKS, also=gymnasium.registry)}, or {', '.join(kinds)} or {last}")


def _with_limit(name: str, called: str, steps: int | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an environment in whose words the time limit is `called` something else."""
    if steps is None:
        return dict(options)
    require_whole(1, max_episode_steps=steps)
    if called in options:
        raise ValueError(f"{name}: max_episode_steps and {called} are the same setting; give one of them")
    return {**options, called: steps}


def _limited(task: Task, max_episode_steps: int | None) -> Task:
    """A task with another time limit, if one is asked for."""
    if max_episode_steps is None:
        return task
    require_whole(1, max_episode_steps=max_episode_steps)
    return task._replace(episode_length=max_episode_steps)


def _require_options(name: str, given: Iterable[str], known: Sequence[str], instead: str = "") -> None:
    """Raises ValueError for options that an environment does not have; `instead` says what has them."""
    unknown = [option for option in given if option not in known]
    if unknown:
        has = ", ".join((*known, "max_episode_steps"))
        raise ValueError(f"{name} takes no option {', '.join(unknown)}, but {has}{instead}")


def module_of(name: str) -> str | None:
    """Returns the module that making an environment of this name would import because the name says so, if any."""
    if any(name.startswith(prefix) for prefix in KINDS):
        return None
    module, colon, _ = name.removeprefix(GYMNASIUM_PREFIX).partition(":")
    return module if colon and module not in sys.modules else None


def is_program(env: Any) -> bool:
    """Whether what a person may give as an environment is a JAX program (see `jaxtrpo.envs.base.Environment`)."""
    if isinstance(env, str):
        return any(env.startswith(prefix) and kind.is_program for prefix, kind in KINDS.items())
    return is_jax_program(env)


def environment_for(
    env: Any, actors: int, max_episode_steps: int | None = None
) -> tuple[Environment, Callable[[], object]]:
    """What a person may give as an environment, ready to be stepped by so many actors; and what ends it if made here.

    Args:
      env: a name, a function that returns a `gymnasium.Env`, or an environment of ours.
      actors: who step it.
      max_episode_steps: time limit in steps; None: the environment's own. One that is made already has it or not.

    Raises:
      ValueError: it is none, there is none of that name, or it has another time limit.
    """
    if isinstance(env, str | type) or (callable(env) and not hasattr(env, "reset")):
        made = make_env(env, groups=actors, max_episode_steps=max_episode_steps)
    elif isinstance(env, Environment):
        _require_sizes(env)
        made = for_groups(env, actors)
    else:
        raise ValueError(f"env={short(env, 60)} must be {_what_works(env)}")
    close = functools.partial(abandon, made) if made is not env else lambda: None
    if max_episode_steps not in (None, made.episode_length):
        close()
        if not isinstance(env, Environment):
            raise ValueError(
                f"max_episode_steps={max_episode_steps}: {made.name} itself ends its episodes after "
                f"{made.episode_length} steps, and cannot be given more"
            )
        length = f"a time limit of {made.episode_length} steps" if has_time_limit(made) else "no time limit"
        raise ValueError(
            f"max_episode_steps={max_episode_steps}: {made.name} was made with {length}; make it with "
            f"jaxtrpo.make_env(..., max_episode_steps={max_episode_steps}) or the like"
        )
    return made, close


def _require_sizes(env: Environment) -> None:
    for name in ("observation_size", "action_size"):
        if getattr(env, name) < 1:
            raise ValueError(f"env={env.name}: {name}={getattr(env, name)} must be at least 1")


def _what_works(env: Any) -> str:
    """In place of something that is no environment."""
    if "gymnasium" in sys.modules and isinstance(env, sys.modules["gymnasium"].Env):
        return "a function that makes it, since every actor has several: lambda: gymnasium.make(...)"
    return (
        "a name, a function that returns a gymnasium.Env, or an environment of jaxtrpo (see "
        f"jaxtrpo.envs.base.Environment), not an object of type {type_name(env)}"
    )


def _from_gymnasium(source: str | Callable[..., Any], **options: Any) -> Environment:
    from jaxtrpo.envs.gymnasium.make import make_gymnasium_env  # so does Gymnasium

    return make_gymnasium_env(source, **options)
