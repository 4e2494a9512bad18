"""Names of environments."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxtrpo.config.checks import require_whole
from jaxtrpo.config.environment import made_elsewhere
from jaxtrpo.config.messages import short, type_name
from jaxtrpo.envs._support.names import unknown_name
from jaxtrpo.envs.abilities import (
    abandon,
    copy_of,
    envs_per_simulator,
    for_groups,
    has,
    is_jax_program,
    solves_equations,
    with_info,
)
from jaxtrpo.envs.base import Environment, has_time_limit
from jaxtrpo.envs.known_as import OF_YOUR_OWN, remember_settings
from jaxtrpo.envs.modules import PREFIX as GYMNASIUM_PREFIX
from jaxtrpo.envs.modules import functions_of, is_maker, package_of, split, value_of
from jaxtrpo.envs.validity import require_valid

if TYPE_CHECKING:
    from jaxtrpo.envs.mujoco.task import Task


class Kind(NamedTuple):
    """A kind of environment that a prefix of the name chooses."""

    # (name without the prefix, time limit in steps or None, options) -> environment. Packages are imported there, by
    # whoever asks for them: Brax alone takes seconds.
    make: Callable[[str, int | None, dict[str, Any]], Environment]
    is_program: bool  # whether its environments are JAX programs
    # (name, environment) -> whether the name belongs to the package, and not to what users may register again under it.
    is_built_in: Callable[[str, Any], bool]
    solves_equations: bool = True  # whether these may solve linear equations, in which many threads wait


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

    require_known(f"mjx:{name}")
    _require_options(f"mjx:{name}", options, ("impl",))
    return MjxEnvironment(_limited(TASKS[name](), steps), **options)


def _of_package(package: str) -> Callable[[str, Any], bool]:
    return lambda name, made: type(made.env).__module__.partition(".")[0] == package


def _of_brax(name: str, made: Any) -> bool:
    from jaxtrpo.envs.brax import is_class_of

    named = name.removeprefix("brax:").partition("/")[0]
    return _of_package("brax")(name, made) and is_class_of(named, made.env)


KINDS: Mapping[str, Kind] = {
    "brax:": Kind(_brax, is_program=True, is_built_in=_of_brax),
    "gymnax:": Kind(_gymnax, is_program=True, is_built_in=_of_package("gymnax"), solves_equations=False),
    "mjx:": Kind(_mjx, is_program=True, is_built_in=lambda name, made: True),
    "playground:": Kind(_playground, is_program=True, is_built_in=_of_package("mujoco_playground")),
}


def _kind_of(name: str) -> Kind | None:
    return next((kind for prefix, kind in KINDS.items() if name.startswith(prefix)), None)


def always_makes_the_same(env: Any, made: Environment) -> bool:
    """Whether `env` is a name that always makes environments with equal pure functions, and whose options say all.

    Args:
      env: what a person gave as an environment.
      made: what it has made.
    """
    from jaxtrpo.envs.mujoco.tasks import TASKS

    if not isinstance(env, str):
        return False
    kind = _kind_of(env)
    return env in TASKS if kind is None else kind.is_built_in(env, made)


def make_env(name: str | Callable[..., Any], *, max_episode_steps: int | None = None, **options: Any) -> Environment:
    """Makes an environment.

    Args:
      name: one of

        - "HalfCheetah-v5" or another MuJoCo task of Gymnasium that jaxtrpo steps natively;
        - "mjx:NAME": such a task on MJX;
        - "brax:NAME" such as "brax:ant", or "brax:NAME/BACKEND" with the backend generalized, positional, spring or
          mjx; "gymnax:NAME" such as "gymnax:CartPole-v1"; "playground:NAME" such as "playground:CheetahRun";
        - any other Gymnasium id such as "CartPole-v1"; "module:Name-v0" also names the module that registers it;
        - "gymnasium:ID": Gymnasium's own version of a task that jaxtrpo steps natively;
        - a function that returns a `gymnasium.Env`, a `gymnasium.vector.VectorEnv` or a jaxtrpo environment;
        - "module:make" or "file.py:make": such a function, or a jaxtrpo environment, in a module or file.
      max_episode_steps: time limit in steps; None: the environment's own, if it has one.
      **options: `groups`, the number of actors that will step the environment; for Brax: `backend`, unless it is part
        of the name; for gymnax: its parameters; for MJX: `impl` (see `jaxtrpo.MjxEnvironment`); for Playground: entries
        of its configuration; for Gymnasium: `processes`, `timeout` and `python`, another interpreter that runs the
        simulators (see `jaxtrpo.envs.gymnasium.make.make_gymnasium_env`), and the keywords of `gymnasium.make` and of
        the environment's constructor.

    Returns:
      The environment (see `jaxtrpo.envs.base.Environment`).

    Raises:
      ValueError: there is no such environment (the message lists similar names), or it cannot be used.
    """
    if not (isinstance(name, str) or is_maker(name)):
        raise ValueError(f"name={short(name, 60)} must be {_what_works(name)}")
    if isinstance(name, str) and name.endswith(OF_YOUR_OWN):
        raise ValueError(f"{name} was built or changed by yourself: give the environment itself in place of its name")
    made = _make(name, max_episode_steps, options)
    given = {option: value for option, value in options.items() if option != "groups"}
    remember_settings(name, made, max_episode_steps, given)
    return made


def _make(name: str | Callable[..., Any], max_episode_steps: int | None, options: dict[str, Any]) -> Environment:
    limit = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
    if callable(name):
        return _from_gymnasium(name, **limit, **options)
    if name.startswith(GYMNASIUM_PREFIX):
        made = None if made_elsewhere(options) else _from_module(name, limit, options)
        return made or _from_gymnasium(name, **limit, **options)
    ours = {option: value for option, value in options.items() if option != "groups"}  # who steps ours does not matter
    for prefix, kind in KINDS.items():
        if name.startswith(prefix):
            return kind.make(name.removeprefix(prefix), max_episode_steps, ours)
    from jaxtrpo.envs.mujoco.tasks import TASKS

    if name in TASKS:
        _require_options(name, ours, (), f"; {GYMNASIUM_PREFIX}{name} takes the options of Gymnasium's constructor")
        from jaxtrpo.envs.mujoco.environment import MujocoEnvironment

        return MujocoEnvironment(_limited(TASKS[name](), max_episode_steps))
    if made_elsewhere(options):
        return _from_gymnasium(name, name=name, **limit, **options)
    made = _from_module(name, limit, options)
    if made is not None:
        return made
    require_known(name)
    return _from_gymnasium(name, name=name, **limit, **options)


def require_known(name: str) -> None:
    """Raises ValueError if there is no environment of this name, as far as is known without importing its package."""
    from jaxtrpo.envs.mujoco.tasks import TASKS

    if name.startswith("mjx:") and (task := name.removeprefix("mjx:")) not in TASKS:
        raise ValueError(unknown_name(task, TASKS, prefix="mjx:"))
    if ":" in name or name in TASKS or split(name):
        return
    import gymnasium

    if not (name in gymnasium.registry or package_of(name)):
        *kinds, last = (f"{prefix}NAME" for prefix in KINDS)
        raise ValueError(f"{unknown_name(name, TASKS, also=gymnasium.registry)}, or {', '.join(kinds)} or {last}")


def _from_module(name: str, limit: dict[str, Any], options: dict[str, Any]) -> Environment | None:
    """Makes the environment of a name "module:NAME"; None if it is the id of a registered one, or says no module."""
    found = split(name)
    value = None if found is None else value_of(name, *found)
    if value is None:
        return None
    if is_maker(value):
        return _from_gymnasium(value, name=name, **limit, **options)
    if not has(value, Environment):
        raise ValueError(f"{name} must be {_what_works(value)}")
    given = {**limit, **options}
    given.pop("groups", None)
    if given:
        raise ValueError(f"{name} is an environment object, so {', '.join(given)} must be set where it is created")
    require_valid(value)
    return for_groups(copy_of(value), options.get("groups", 1))  # a run closes the simulators that it is given by name


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
        raise ValueError(f"{name} has no option {', '.join(unknown)}; it has {has}{instead}")


def same_spaces(name: str) -> str | None:
    """Returns the name of an environment with the same observations and actions that is quicker to make, if any."""
    from jaxtrpo.envs.mujoco.tasks import TASKS

    task = name.removeprefix("mjx:")
    return task if task != name and task in TASKS else None


def is_program(env: Any, options: Mapping[str, Any] = MappingProxyType({})) -> bool:
    """Whether what a person may give as an environment, with options, is a JAX program (see `Environment`)."""
    return _of_kind(env, options, lambda kind: kind.is_program, is_jax_program)


def may_solve_equations(env: Any, options: Mapping[str, Any] = MappingProxyType({})) -> bool:
    """Whether what a person may give as an environment, with options, is a JAX program that may call LAPACK."""
    return _of_kind(env, options, lambda kind: kind.solves_equations, solves_equations)


def _of_kind(
    env: Any, options: Mapping[str, Any], of_kind: Callable[[Kind], bool], of_object: Callable[[Any], bool]
) -> bool:
    """Returns what a prefix says of the environments that it chooses, or else the object that was given or is named."""
    if not isinstance(env, str):
        return of_object(env)
    kind = _kind_of(env)
    if kind is not None:
        return of_kind(kind)
    found = None if made_elsewhere(options) else split(env)
    return found is not None and of_object(value_of(env, *found))


def may_make_vectors(env: Any) -> bool:
    """Whether what a person may give as an environment may be a function that makes vector environments."""
    if isinstance(env, str):
        return split(env) is not None
    return envs_per_simulator(env) > 1 or not has(env, Environment)


def environment_for(
    env: Any,
    actors: int,
    max_episode_steps: int | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
    info: tuple[str, ...] = (),
    *,
    success: bool = False,
) -> tuple[Environment, Callable[[], object]]:
    """Returns the environment that a user gave, ready for `actors`, and a function that closes it if it was made here.

    Args:
      env: a name, a function that returns a `gymnasium.Env`, or a jaxtrpo environment.
      actors: number of actors that step it.
      max_episode_steps: time limit in steps; None: the environment's own. An environment object must have it already.
      options: other options of `make_env`; must be empty for an environment object.
      info: entries of `info` that it reports, as for `jaxtrpo.envs.abilities.with_info`.
      success: whether it also reports success, if its `info` has that.

    Raises:
      ValueError: `env` is not an environment, there is none of that name, or it has another time limit.
    """
    if isinstance(env, str) or is_maker(env):
        made = make_env(env, groups=actors, max_episode_steps=max_episode_steps, **options)
    elif has(env, Environment):
        if options:
            raise ValueError(
                f"env_options: {', '.join(options)} must be set where {env.name} is created, as in "
                f"jaxtrpo.make_env(NAME, {next(iter(options))}=...)"
            )
        require_valid(env)
        made = for_groups(env, actors)
    else:
        raise ValueError(f"env={short(env, 60)} must be {_what_works(env)}")
    made = with_info(made, info, success=success)
    close = functools.partial(abandon, made) if made is not env else lambda: None
    if max_episode_steps not in (None, made.episode_length):
        close()
        if not has(env, Environment):
            other = "longer" if max_episode_steps > made.episode_length else "shorter"
            raise ValueError(
                f"max_episode_steps={max_episode_steps}: {made.name} itself ends its episodes after "
                f"{made.episode_length} steps; a {other} limit must be set there"
            )
        length = f"a time limit of {made.episode_length} steps" if has_time_limit(made) else "no time limit"
        raise ValueError(
            f"max_episode_steps={max_episode_steps}: {made.name} was created with {length}; set the limit there, as in "
            f"jaxtrpo.make_env(..., max_episode_steps={max_episode_steps})"
        )
    return made, close


def _what_works(env: Any) -> str:
    """Returns what is accepted in place of something that is not an environment."""
    gymnasium = sys.modules.get("gymnasium")
    if gymnasium is not None and isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv):
        return "a function that creates it, since every actor needs several: lambda: gymnasium.make(...)"
    if isinstance(env, ModuleType):
        own = [f"{env.__name__}.{name}" for name in functions_of(env)[:2]] or [f"{env.__name__}.FUNCTION"]
        return f"a function of the module, not the module itself: {' or '.join(own)}"
    lacks = ""
    if hasattr(env, "reset") and hasattr(env, "step"):
        lacks = f", which lacks {', '.join(name for name in Environment.__annotations__ if not hasattr(env, name))}"
    return (
        "a name, a function that returns a gymnasium.Env, or a jaxtrpo environment (see "
        f"jaxtrpo.envs.base.Environment), not an object of type {type_name(env)}{lacks}"
    )


def _from_gymnasium(source: str | Callable[..., Any], /, **options: Any) -> Environment:
    from jaxtrpo.envs.gymnasium.make import make_gymnasium_env  # so does Gymnasium

    return make_gymnasium_env(source, **options)
