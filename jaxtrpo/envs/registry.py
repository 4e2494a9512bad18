"""Names of environments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxtrpo.config.checks import require_whole
from jaxtrpo.config.messages import short, type_name
from jaxtrpo.envs._support.names import unknown_name
from jaxtrpo.envs.base import Environment, has_time_limit

if TYPE_CHECKING:
    from jaxtrpo.envs.mujoco.task import Task

BRAX_PREFIX, GYMNAX_PREFIX, GYMNASIUM_PREFIX = "brax:", "gymnax:", "gymnasium:"
MJX_PREFIX, PLAYGROUND_PREFIX = "mjx:", "playground:"
PROGRAMS = BRAX_PREFIX, GYMNAX_PREFIX, MJX_PREFIX, PLAYGROUND_PREFIX


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
    if name.startswith(BRAX_PREFIX):
        from jaxtrpo.envs.brax import make_brax_env  # Brax takes seconds to import, so only who asks for it pays

        brax_name, _, backend = name.removeprefix(BRAX_PREFIX).partition("/")
        if backend and ours.get("backend", backend) != backend:
            raise ValueError(f"{name} and backend={ours['backend']!r} contradict each other; give only one of them")
        ours = {
            **({"backend": backend} if backend else {}),
            **_with_limit(name, "episode_length", max_episode_steps, ours),
        }
        _require_options(name, ours, ("backend", "episode_length"))
        return make_brax_env(brax_name, **ours)
    if name.startswith(GYMNAX_PREFIX):
        from jaxtrpo.envs.gymnax import make_gymnax_env  # an optional package

        ours = _with_limit(name, "max_steps_in_episode", max_episode_steps, ours)
        return make_gymnax_env(name.removeprefix(GYMNAX_PREFIX), **ours)
    if name.startswith(PLAYGROUND_PREFIX):
        from jaxtrpo.envs.playground import make_playground_env  # an optional package

        ours = _with_limit(name, "episode_length", max_episode_steps, ours)
        return make_playground_env(name.removeprefix(PLAYGROUND_PREFIX), **ours)
    from jaxtrpo.envs.mujoco.tasks import TASKS

    if name.startswith(MJX_PREFIX):
        from jaxtrpo.envs.mujoco.mjx import MjxEnvironment

        task = name.removeprefix(MJX_PREFIX)
        if task not in TASKS:
            raise ValueError(unknown_name(task, TASKS, prefix=MJX_PREFIX))
        _require_options(name, ours, ("impl",))
        return MjxEnvironment(_limited(TASKS[task](), max_episode_steps), **ours)
    if name in TASKS:
        _require_options(name, ours, (), f"; {GYMNASIUM_PREFIX}{name} takes what Gymnasium's constructor does")
        from jaxtrpo.envs.mujoco.environment import MujocoEnvironment

        return MujocoEnvironment(_limited(TASKS[name](), max_episode_steps))
    import gymnasium

    if name in gymnasium.registry or ":" in name:
        return _from_gymnasium(name, name=name, **limit, **options)
    kinds = ", or brax:NAME, gymnax:NAME, mjx:NAME or playground:NAME"
    raise ValueError(unknown_name(name, TASKS, also=gymnasium.registry) + kinds)


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


def is_program(env: Any) -> bool:
    """Whether what a person may give as an environment is a JAX program (see `jaxtrpo.envs.base.Environment`)."""
    named = isinstance(env, str) and env.startswith(PROGRAMS)
    return named or bool(getattr(env, "is_program", False))


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
        made = getattr(env, "for_groups", lambda count: env)(actors)
    else:
        raise ValueError(f"env={short(env, 60)} must be {_what_works(env)}")
    close = getattr(made, "abandon", lambda: None) if made is not env else lambda: None
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
