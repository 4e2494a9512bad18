"""Creation of an environment from a Gymnasium id or a function, with validation of user input."""

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
from jaxtrpo.envs.gymnasium.errors import SimulatorError, without_traceback
from jaxtrpo.envs.gymnasium.observations import observations_of
from jaxtrpo.envs.gymnasium.shared_arrays import RowSizes
from jaxtrpo.envs.gymnasium.spec import Source
from jaxtrpo.envs.gymnasium.steppers import Stepper, StepperConfig, make_stepper
from jaxtrpo.envs.gymnasium.stepping_plan import SteppingPlan
from jaxtrpo.envs.observations import Observations

TIMED_STEPS = 50  # at most
TIMED_SECONDS = 0.2  # at most
STEPPER_SECONDS = 20e-6  # overhead of a step, measured with a simulator that does nothing
_TRIAL_ENVS = 2  # environments in a temporary vector environment


def make_gymnasium_env(
    source: str | Callable[..., gymnasium.Env],
    *,
    name: str | None = None,
    processes: int | None = None,
    groups: int = 1,
    timeout: float = 30.0,
    **options: Any,
) -> GymnasiumEnvironment:
    """Creates an environment from a `gymnasium.Env`.

    First creates, resets and steps a temporary simulator.

    Args:
      source: registered id such as "CartPole-v1", optionally prefixed with "gymnasium:" or with the module that
        registers it ("module:Name-v0"); or a function that returns a `gymnasium.Env`.
      name: name of the environment; None: "gymnasium:" and the id or the qualified name of the function.
      processes: number of worker processes that step the environments; 0: the calling thread steps them; None: chosen
        by the measured duration of a step of the temporary simulator.
      groups: number of actors that step the environment concurrently, each a consecutive share of it.
      timeout: seconds that a worker process may take for a step. XLA itself waits 40 seconds for an actor that is
        missing at a collective.
      **options: keyword arguments for the environment's constructor or the function. `max_episode_steps` and
        `disable_env_checker` are those of `gymnasium.make`. If a function does not take `max_episode_steps`, its
        episodes are truncated here.

    Raises:
      ValueError: there is no such environment or it cannot be used; the message says why and where it failed.
    """
    if processes is not None and processes < 0:
        raise ValueError(f"processes={processes} must be at least 0")
    if groups < 1:
        raise ValueError(f"groups={groups} must be at least 1")
    if not timeout > 0:
        raise ValueError(f"timeout={timeout} must be more than 0 seconds")
    if options.get(sources.LIMIT) not in (None, sources.NO_LIMIT):
        require_whole(1, max_episode_steps=options[sources.LIMIT])
    found = sources.find_source(source, options, name)
    try:
        vector = found.is_vector()
        if not vector and found.spec is not None and found.spec.entry_point is None:
            raise ValueError(
                f"{found.name} has only a vector environment that uses JAX or wrappers, which is not supported; "
                "register an entry_point"
            )
        plan = (_try_vector if vector else _try_single)(found, processes, groups, timeout)
    except SimulatorError as error:
        raise ValueError(without_traceback(error)) from error.__cause__  # keeps the simulator's traceback
    return GymnasiumEnvironment(plan)


def _try_single(source: Source, processes: int | None, groups: int, timeout: float) -> SteppingPlan:
    env = _make(source, lambda: source.make_single(limited=True))
    try:
        _require_env(source.name, env)
        observations, actions = _spaces(source, env, "observation_space", "action_space")
        limit = min(sources.time_limit(env), source.limit or sources.UNLIMITED)
        calls_jax = sources.calls_jax(env)
    finally:
        _close(env)
    if calls_jax and processes == 0:
        raise ValueError(f"processes=0: {source.name} calls JAX, which would deadlock; use at least 1 process")
    seconds = _seconds_per_step(source, observations, actions, limit, 1, vector=False)
    return SteppingPlan(source, observations, actions, limit, False, calls_jax, seconds, processes, groups, timeout)


def _try_vector(source: Source, processes: int | None, groups: int, timeout: float) -> SteppingPlan:
    env = _make(source, lambda: source.make_vector(_TRIAL_ENVS))
    try:
        observations, actions = _spaces(source, env, "single_observation_space", "single_action_space")
        limit = sources.time_limit_of_vector(env)
    finally:
        _close(env)
    seconds = _seconds_per_step(source, observations, actions, limit, _TRIAL_ENVS, vector=True)
    return SteppingPlan(source, observations, actions, limit, True, False, seconds, processes, groups, timeout)


def _sampling_bounds(actions: Actions) -> tuple[np.ndarray, np.ndarray]:
    """Returns finite bounds, at most 1e6 in size where possible, to sample continuous actions from."""
    low, high = actions.space.float32_bounds()
    low = np.where(np.isfinite(low), low, np.minimum(high, 1) - 2)
    high = np.where(np.isfinite(high), high, np.maximum(low, -1) + 2)
    return np.maximum(low, -1e6), np.minimum(high, 1e6)


def _make(source: Source, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception as error:
        raise ValueError(f"{source.name} cannot be created: {described(error)}") from error


def _require_env(name: str, env: Any) -> None:
    """Raises ValueError if `env` is not a `gymnasium.Env`; the message names the nearest alternative."""
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise ValueError(f"{name} is a gymnasium.vector.VectorEnv; pass a function that returns a single gymnasium.Env")
    if isinstance(env, gymnasium.Env):
        return
    is_old_gym = any(kind.__module__.partition(".")[0] == "gym" for kind in type(env).__mro__)
    nearest = (
        "an environment of the old gym; wrap it with shimmy.GymV26CompatibilityV0(env=...), or GymV21CompatibilityV0 "
        "before gym 0.26 (pip install shimmy)"
        if is_old_gym
        else "not a gymnasium.Env; pass a subclass of gymnasium.Env or a function that returns one"
    )
    raise ValueError(f"{name} returned an object of type {type_name(env)}, {nearest}")


def _spaces(source: Source, env: Any, *names: str) -> tuple[Observations, Actions]:
    """Converts the observation space and the action space, found under these names."""
    found = []
    for name in names:
        try:
            space = getattr(env, name)
        except AttributeError as error:
            raise ValueError(
                f"{source.name} has no {name}; its class or __init__ must set it, for example to a gymnasium.spaces.Box"
            ) from error
        if not isinstance(space, gymnasium.spaces.Space):
            raise ValueError(
                f"{source.name}: {name} must be a gymnasium.Space, not {short(space)} of type {type_name(space)}"
            )
        found.append(space)
    try:
        return observations_of(found[0]), Actions(found[1])
    except ValueError as error:
        raise ValueError(f"{source.name}: {error}") from None


def _close(env: Any) -> None:
    """Closes a temporary environment and ignores exceptions."""
    with contextlib.suppress(Exception):
        env.close()


def _seconds_per_step(
    source: Source, observations: Observations, actions: Actions, limit: int, num_envs: int, *, vector: bool
) -> float:
    """Measures the seconds of a step; raises `SimulatorError` if the simulator violates Gymnasium's interface."""
    sizes = RowSizes(num_envs, observations.size, actions.size, actions.flat_dtype.name)
    rows = sizes.on(bytearray(sizes.nbytes()))
    stepper: Stepper = make_stepper(StepperConfig(source, sizes, (0, num_envs), vector, limit), rows)
    rng, durations = np.random.default_rng(0), []
    try:
        stepper.reset()
        start = time.perf_counter()
        while len(durations) < TIMED_STEPS and (not durations or time.perf_counter() < start + TIMED_SECONDS):
            if actions.counts:
                rows.action[:] = rng.integers(0, actions.counts, rows.action.shape)
            else:
                rows.action[:] = rng.uniform(*_sampling_bounds(actions), rows.action.shape)
            before = time.perf_counter()
            stepper.step(0, num_envs)
            durations.append(time.perf_counter() - before)
    finally:
        stepper.close()
    return max(float(np.median(durations)) - STEPPER_SECONDS, 0.0)
