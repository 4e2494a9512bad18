"""Making an environment from a Gymnasium id or function: everything a person may get wrong is found here."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from jaxtrpo.envs.gymnasium import source as sources
from jaxtrpo.envs.gymnasium.actions import Actions
from jaxtrpo.envs.gymnasium.environment import GymnasiumEnvironment
from jaxtrpo.envs.gymnasium.errors import SimulatorError, short
from jaxtrpo.envs.gymnasium.observations import observations_of
from jaxtrpo.envs.gymnasium.plan import Plan
from jaxtrpo.envs.gymnasium.rows import RowSizes
from jaxtrpo.envs.gymnasium.source import Source
from jaxtrpo.envs.gymnasium.stepper import Stepper, Task, make_stepper
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
      **options: for the environment's constructor, or the function.

    Raises:
      ValueError: no such environment, or one that cannot be used; one sentence says why.
    """
    if processes is not None and processes < 0:
        raise ValueError("processes must be at least 0")
    if groups < 1:
        raise ValueError("groups must be at least 1")
    if not timeout > 0:
        raise ValueError("timeout must be more than 0 seconds")
    found = sources.find_source(source, options, name)
    try:
        vector = found.is_vector()
        if not vector and found.spec is not None and found.spec.entry_point is None:
            raise ValueError(
                f"{found.name} exists only as a vector environment that calls JAX or needs wrappers, "
                "which cannot be stepped here"
            )
        plan = (_try_vector if vector else _try_single)(found, processes, groups, timeout)
    except SimulatorError as error:
        raise ValueError(str(error)) from error
    return GymnasiumEnvironment(plan)


def _try_single(source: Source, processes: int | None, groups: int, timeout: float) -> Plan:
    env = _made(source, source.make_single)
    try:
        if isinstance(env, gymnasium.vector.VectorEnv):
            raise ValueError(
                f"{source.name} is a gymnasium.vector.VectorEnv; give a function that returns one of its Envs"
            )
        if not isinstance(env, gymnasium.Env):
            raise ValueError(f"{source.name} is a {type(env).__qualname__}, which is no gymnasium.Env")
        observations, actions = _spaces(source, env.observation_space, env.action_space)
        limit = sources.time_limit(env, source.spec)
        jax_inside = sources.calls_jax(env)
    finally:
        if hasattr(env, "close"):
            env.close()
    if jax_inside and processes == 0:
        raise ValueError(f"{source.name} calls JAX, which would wait for itself here; give it processes")
    seconds = _tried(source, observations, actions, limit, 1, vector=False)
    return Plan(source, observations, actions, limit, False, jax_inside, seconds, processes, groups, timeout)


def _try_vector(source: Source, processes: int | None, groups: int, timeout: float) -> Plan:
    env = _made(source, lambda: source.make_vector(_TRIED_TOGETHER))
    try:
        observations, actions = _spaces(source, env.single_observation_space, env.single_action_space)
        limit = source.spec.max_episode_steps or getattr(env, "max_episode_steps", None) or sources.UNLIMITED
    finally:
        env.close()
    seconds = _tried(source, observations, actions, limit, _TRIED_TOGETHER, vector=True)
    return Plan(source, observations, actions, int(limit), True, False, seconds, processes, groups, timeout)


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
        raise ValueError(f"{source.name} cannot be made: {type(error).__name__}: {short(str(error), 500)}") from error


def _spaces(source: Source, observation: Any, action: Any) -> tuple[Observations, Actions]:
    try:
        return observations_of(observation), Actions(action)
    except ValueError as error:
        raise ValueError(f"{source.name}: {error}") from None


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
