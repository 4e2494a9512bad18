"""Names of environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxtrpo.envs.base import Environment
from jaxtrpo.envs.names import unknown_name

BRAX_PREFIX, GYMNAX_PREFIX, GYMNASIUM_PREFIX = "brax:", "gymnax:", "gymnasium:"
MJX_PREFIX, PLAYGROUND_PREFIX = "mjx:", "playground:"
PROGRAMS = BRAX_PREFIX, GYMNAX_PREFIX, MJX_PREFIX, PLAYGROUND_PREFIX


def make_env(name: str | Callable[..., Any], **options: Any) -> Environment:
    """Makes an environment.

    Args:
      name: a MuJoCo task of Gymnasium such as "HalfCheetah-v5", which we step ourselves; "brax:NAME" such as
        "brax:ant", or "brax:NAME/BACKEND" with the physics generalized, positional, spring or mjx; "gymnax:NAME" such
        as "gymnax:CartPole-v1"; "mjx:NAME" for a MuJoCo task of ours on MJX; "playground:NAME" such as
        "playground:CheetahRun"; any other id of Gymnasium such as "CartPole-v1", with the module that registers it in
        front where that is needed ("module:Name-v0"); "gymnasium:ID" for Gymnasium's own version of what we have too;
        or a function that returns a `gymnasium.Env`.
      **options: `groups`, the number of actors that will step it; for Brax: `backend`, if the name says none, and
        `episode_length`; for gymnax: its parameters; for MJX: `impl` (see `jaxtrpo.MjxEnvironment`); for Playground:
        entries of its configuration such as `episode_length`; for Gymnasium: `processes` and `timeout` (see
        `jaxtrpo.envs.gymnasium.make.make_gymnasium_env`), and what the environment's constructor takes.

    Returns:
      The environment (see `jaxtrpo.envs.base.Environment`).

    Raises:
      ValueError: no such environment, in which case the message lists near names; or one that cannot be used.
    """
    if callable(name) or name.startswith(GYMNASIUM_PREFIX):
        return _from_gymnasium(name, **options)
    ours = {option: value for option, value in options.items() if option != "groups"}  # who steps ours does not matter
    if name.startswith(BRAX_PREFIX):
        from jaxtrpo.envs.brax import make_brax_env  # Brax takes seconds to import, so only who asks for it pays

        brax_name, _, backend = name.removeprefix(BRAX_PREFIX).partition("/")
        if backend and ours.get("backend", backend) != backend:
            raise ValueError(f"{name} and backend={ours['backend']!r} contradict each other; give only one of them")
        return make_brax_env(brax_name, **{**({"backend": backend} if backend else {}), **ours})
    if name.startswith(GYMNAX_PREFIX):
        from jaxtrpo.envs.gymnax import make_gymnax_env  # an optional package

        return make_gymnax_env(name.removeprefix(GYMNAX_PREFIX), **ours)
    if name.startswith(PLAYGROUND_PREFIX):
        from jaxtrpo.envs.playground import make_playground_env  # an optional package

        return make_playground_env(name.removeprefix(PLAYGROUND_PREFIX), **ours)
    from jaxtrpo.envs.mujoco.tasks import TASKS

    if name.startswith(MJX_PREFIX):
        from jaxtrpo.envs.mujoco.mjx import MjxEnvironment

        task = name.removeprefix(MJX_PREFIX)
        if task not in TASKS:
            raise ValueError(unknown_name(task, TASKS, prefix=MJX_PREFIX))
        return MjxEnvironment(TASKS[task](), **ours)
    if name in TASKS:
        if ours:
            raise ValueError(f"{name} takes no option {', '.join(ours)}")
        from jaxtrpo.envs.mujoco.environment import MujocoEnvironment

        return MujocoEnvironment(TASKS[name]())
    import gymnasium

    if name in gymnasium.registry or ":" in name:
        return _from_gymnasium(name, name=name, **options)
    kinds = ", or brax:NAME, gymnax:NAME, mjx:NAME or playground:NAME"
    raise ValueError(unknown_name(name, TASKS, also=gymnasium.registry) + kinds)


def is_program(env: Any) -> bool:
    """Whether what a person may give as an environment is a JAX program (see `jaxtrpo.envs.base.Environment`)."""
    named = isinstance(env, str) and env.startswith(PROGRAMS)
    return named or bool(getattr(env, "is_program", False))


def environment_for(env: Any, actors: int) -> tuple[Environment, Callable[[], object]]:
    """What a person may give as an environment, ready to be stepped by so many actors; and what ends it if made here.

    Raises:
      ValueError: it is none, or there is none of that name.
    """
    if isinstance(env, str | type) or (callable(env) and not hasattr(env, "reset")):
        made = make_env(env, groups=actors)
    elif isinstance(env, Environment):
        made = getattr(env, "for_groups", lambda count: env)(actors)
    else:
        raise ValueError(
            f"env={env!r} must be a name, an environment of jaxtrpo (see jaxtrpo.envs.base.Environment), or a function "
            "that returns a gymnasium.Env"
        )
    return made, getattr(made, "abandon", lambda: None) if made is not env else lambda: None


def _from_gymnasium(source: str | Callable[..., Any], **options: Any) -> Environment:
    from jaxtrpo.envs.gymnasium.make import make_gymnasium_env  # so does Gymnasium

    return make_gymnasium_env(source, **options)
