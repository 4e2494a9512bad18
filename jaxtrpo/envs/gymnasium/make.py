"""Making an environment from a Gymnasium id or function: everything a person may get wrong is found here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from jaxtrpo.config.checks import require_whole
from jaxtrpo.config.messages import described, short, type_name
from jaxtrpo.envs.gymnasium import spec as sources
from jaxtrpo.envs.gymnasium.actions import Actions
from jaxtrpo.envs.gymnasium.environment import GymnasiumEnvironment
from jaxtrpo.envs.gymnasium.errors import SimulatorError, sentence
from jaxtrpo.envs.gymnasium.observations import observations_of
from jaxtrpo.envs.gymnasium.shared_arrays import RowSizes
from jaxtrpo.envs.gymnasium.spec import Source
from jaxtrpo.envs.gymnasium.steppers import Stepper, Task, make_stepper
from jaxtrpo.envs.gymnasium.stepping_plan import Plan
from jaxtrpo.envs.observations import Observations

STEPS_TO_TIME = 50
SECONDS_TO_TIME = 0.2
# Of a step, whatever the simulators: measured with one that does nothing.
SECONDS_OF_OUR_OWN = 20e-6
_TRIED_TOGETHER = 2  # environments in a throwaway vector environment


def make_gymnasium_env(
    source: str | Callable[..., gymnasium.Env],
    *,
    name: str | None = None,
    processes: int | None = None,
    groups: int = 1,
    timeout: float = 30.0,
    **options: Any,
) -> GymnasiumEnvironment:
    """Makes an environment of a `gymnasium.Env`.

    Makes, resets and steps a throwaway simulator first.

    Args:
      source: a registered id such as "CartPole-v1", also with "gymnasium:" or the module that registers it in front
        ("module:Name-v0"); or a function that returns a `gymnasium.Env`.
      name: of the environment; None: "gymnasium:" and the id, or the qualified name of the function.
      processes: that step the environments; 0: the thread that asks for a step does; None: what seems faster by the
        time that a throwaway simulator takes.
      groups: actors that step it at the same time, each a consecutive share of the environments.
      timeout: seconds that a process may take for a step; where actors meet XLA waits 40 for one that does not come.
      **options: for the environment's constructor, or the function. `max_episode_steps` and `disable_env_checker` are
        those of `gymnasium.make`; a function that does not take `max_episode_steps` has its episodes cut by us.

    Raises:
      ValueError: no such environment, or one that cannot be used; one sentence says why, and where it failed.
    """
    if processes is not None and processes < 0:
        raise ValueError("processes must be at least 0")
    if groups < 1:
        raise ValueError("groups must be at least 1")
    if not timeout > 0:
        raise ValueError("timeout must be more than 0 seconds")
    if options.get(sources.LIMIT) not in (None, sources.NO_LIMIT):
        require_whole(1, max_episode_steps=options[sources.LIMIT])
    found = sources.find_source(source, options, name)
    try:
        vector = found.is_vector()
        if not vector and found.spec is not None and found.spec.entry_point is None:
            raise ValueError(
                f"{found.name} exists only as a vector environment that calls JAX or needs wrappers, "
                "which cannot be stepped here"
            )
        plan = (_try_vector if vector else _try_single)(found, processes, groups, timeout)
    except SimulatorError as error:  # what the simulator raised keeps its own traceback
        raise ValueError(sentence(error)) from error.__cause__
    return GymnasiumEnvironment(plan)


def _try_single(source: Source, processes: int | None, groups: int, timeout: float) -> Plan:
    env = _made(source, lambda: source.make_single(limited=True))
    try:
        _require_env(source.name, env)
        observations, actions = _spaces(source, env, "observation_space", "action_space")
        limit = min(sources.time_limit(env), source.limit or sources.UNLIMITED)
        jax_inside = sources.calls_jax(env)
    finally:
        _close(env)
    if jax_inside and processes == 0:
        raise ValueError(f"{source.name} calls JAX, which would wait for itself here; give it processes")
    seconds = _tried(source, observations, actions, limit, 1, vector=False)
    return Plan(source, observations, actions, limit, False, jax_inside, seconds, processes, groups, timeout)


def _try_vector(source: Source, processes: int | None, groups: int, timeout: float) -> Plan:
    env = _made(source, lambda: source.make_vector(_TRIED_TOGETHER))
    try:
        observations, actions = _spaces(source, env, "single_observation_space", "single_action_space")
        limit = sources.time_limit_of_vector(env)
    finally:
        _close(env)
    seconds = _tried(source, observations, actions, limit, _TRIED_TOGETHER, vector=True)
    return Plan(source, observations, actions, limit, True, False, seconds, processes, groups, timeout)


def _some_bounds(actions: Actions) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of actions, finite and not too far apart."""
    low, high = actions.space.float32_bounds()
    low = np.where(np.isfinite(low), low, np.minimum(high, 1) - 2)
    high = np.where(np.isfinite(high), high, np.maximum(low, -1) + 2)
    return np.maximum(low, -1e6), np.minimum(high, 1e6)


def _made(source: Source, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception as error:
        raise ValueError(f"{source.name} cannot be made: {described(error)}") from error


def _require_env(name: str, env: Any) -> None:
    """Raises ValueError for what is not a `gymnasium.Env`, with the nearest thing that works."""
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise ValueError(f"{name} is a gymnasium.vector.VectorEnv; give a function that returns one of its Envs")
    if isinstance(env, gymnasium.Env):
        return
    old = any(kind.__module__.partition(".")[0] == "gym" for kind in type(env).__mro__)
    nearest = (
        "an environment of the old gym; wrap it with shimmy.GymV26CompatibilityV0(env=...), or GymV21CompatibilityV0 "
        "before gym 0.26 (pip install shimmy)"
        if old
        else "not a gymnasium.Env; give a function, or a subclass of gymnasium.Env, that makes one"
    )
    raise ValueError(f"{name} makes an object of type {type_name(env)}, {nearest}")


def _spaces(source: Source, env: Any, *names: str) -> tuple[Observations, Actions]:
    """The spaces that an environment has under these names: of observations, and of actions."""
    found = []
    for name in names:
        try:
            space = getattr(env, name)
        except AttributeError as error:
            raise ValueError(
                f"{source.name} has no {name}; its class or __init__ must set it, to a gymnasium.spaces.Box for example"
            ) from error
        if not isinstance(space, gymnasium.spaces.Space):
            raise ValueError(
                f"{source.name}: {name} is {short(space)}, of type {type_name(space)}, not a gymnasium.Space"
            )
        found.append(space)
    try:
        return observations_of(found[0]), Actions(found[1])
    except ValueError as error:
        raise ValueError(f"{source.name}: {error}") from None


def _close(env: Any) -> None:
    """Closes a throwaway environment, whatever that may raise."""
    with contextlib.suppress(Exception):
        env.close()


def _tried(
    source: Source, observations: Observations, actions: Actions, limit: int, num_envs: int, *, vector: bool
) -> float:
    """Seconds that a step takes; raises `SimulatorError` where the simulator breaks Gymnasium's interface."""
    sizes = RowSizes(num_envs, observations.size, actions.size, actions.flat_dtype.name)
    rows = sizes.on(bytearray(sizes.nbytes()))
    stepper: Stepper = make_stepper(Task(source, sizes, (0, num_envs), vector, limit), rows)
    rng, took = np.random.default_rng(0), []
    try:
        stepper.reset()
        begin = time.perf_counter()
        while len(took) < STEPS_TO_TIME and (not took or time.perf_counter() < begin + SECONDS_TO_TIME):
            if actions.counts:
                rows.action[:] = rng.integers(0, actions.counts, rows.action.shape)
            else:
                rows.action[:] = rng.uniform(*_some_bounds(actions), rows.action.shape)
            before = time.perf_counter()
            stepper.step(0, num_envs)
            took.append(time.perf_counter() - before)
    finally:
        stepper.close()
    return max(float(np.median(took)) - SECONDS_OF_OUR_OWN, 0.0)
