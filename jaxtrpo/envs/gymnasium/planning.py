"""How to step what a Gymnasium id or a function makes: a temporary simulator is tried, and user input validated."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from jaxtrpo.config.messages import described, short, type_name
from jaxtrpo.envs.gymnasium import spec as sources
from jaxtrpo.envs.gymnasium.actions import Actions, action_space_of
from jaxtrpo.envs.gymnasium.errors import RAISED
from jaxtrpo.envs.gymnasium.masks import ActionMask, draw_legal, find_masks, masks_vector, without_mask
from jaxtrpo.envs.gymnasium.observations import observations_of
from jaxtrpo.envs.gymnasium.shared_arrays import RowSizes
from jaxtrpo.envs.gymnasium.spec import Source
from jaxtrpo.envs.gymnasium.steppers import StepperConfig, make_stepper
from jaxtrpo.envs.gymnasium.stepping_plan import SUCCESS, SteppingPlan
from jaxtrpo.envs.gymnasium.vector_envs import names_of_spaces
from jaxtrpo.envs.observations import Observations

TIMED_STEPS = 50  # at most
TIMED_SECONDS = 0.2  # at most
STEPPER_SECONDS = 20e-6  # overhead of a step, measured with a simulator that does nothing
_TRIAL_ENVS = 2  # environments in a temporary vector environment


class How(NamedTuple):
    """Who steps the environments (see `make_gymnasium_env`)."""

    processes: int | None
    groups: int
    timeout: float


class Planned(NamedTuple):
    """How to step an environment, and what policies observe."""

    plan: SteppingPlan
    unmasked: Observations | None  # observations without the mask, if actions are masked


def plan_env(found: Source, how: How, is_ours: Callable[[Any], bool] = lambda env: False) -> Planned | Any:
    """Plans how to step an environment; returns a jaxtrpo environment, if a function made one, as it is.

    Creates, resets and steps a temporary simulator.

    Raises:
      ValueError: the environment cannot be used.
      SimulatorError: the simulator violates Gymnasium's interface.
    """
    vector = found.is_vector()
    if not vector and found.spec is not None and found.spec.entry_point is None:
        raise ValueError(
            f"{found.name} has only a vector environment, which is not supported if it uses JAX or wrappers, or before "
            "Gymnasium 1.1; register an entry_point"
        )
    if vector:
        plan = _try_vector(found, how)
        if plan is not None:
            return Planned(plan, None)
    env = _make(found, lambda: found.make_single(limited=True))
    if is_ours(env):
        return env
    if isinstance(env, gymnasium.vector.VectorEnv):
        if not hasattr(gymnasium.vector, "AutoresetMode"):
            _close(env)
            raise ValueError(f"{found.name} makes a vector environment, which needs Gymnasium 1.1 or newer")
        return Planned(_try_own_vector(found, env, how), None)
    return _try_single(found, env, how)


def _try_single(source: Source, env: Any, how: How) -> Planned:
    """Plans how to step simulators like `env`, which is not needed any more."""
    try:
        _require_env(source.name, env)
        observations, actions = _spaces(source, env, "observation_space", "action_space")
        convention = find_masks(env)
        seen = observations
        if convention is not None:
            if not without_mask(observations).parts:
                raise ValueError(f"{source.name}: the observation holds nothing but the action mask")
            source, env = dataclasses.replace(source, masks=convention), ActionMask(env, convention)
            seen = observations_of(env.observation_space)
        limit = min(sources.time_limit(env), *source.limits())
        calls_jax = _calls_jax(source, env, how.processes)
    finally:
        _close(env)
    seconds, success = _try_steps(source, seen, actions, limit, 1, vector=False)
    plan = SteppingPlan(source, seen, actions, limit, False, calls_jax, seconds, *how, success)
    return Planned(plan, None if convention is None else without_mask(observations))


def _calls_jax(source: Source, env: Any, processes: int | None) -> bool:
    """Returns whether a simulator calls JAX, which the thread that steps the others must not."""
    found = sources.calls_jax(env)
    if found and processes == 0:
        raise ValueError(
            f"processes=0: the module that defines {source.name} imports JAX, and a step that calls JAX would "
            "deadlock; use at least 1 process, or move the environment to a module that does not import JAX"
        )
    return found


def _try_vector(source: Source, how: How) -> SteppingPlan | None:
    """Returns None if single environments are to be used.

    They are if they observe something else (Atari's are not preprocessed) or mask actions, and if the vector
    environment does not say how it resets.
    """
    env = _make(source, lambda: source.make_vector(_TRIAL_ENVS))
    try:
        observations, actions = _spaces(source, env, "single_observation_space", "single_action_space")
        limit = sources.time_limit_of_vector(env)
    finally:
        _close(env)
    if source.spec.entry_point is not None:
        if not isinstance(env.metadata.get("autoreset_mode"), gymnasium.vector.AutoresetMode):
            return None
        single = _make(source, source.make_single)
        try:
            if _shapes(observations_of(single.observation_space)) != _shapes(observations) or find_masks(single):
                return None
        finally:
            _close(single)
    seconds, success = _try_steps(source, observations, actions, limit, _TRIAL_ENVS, vector=True)
    return SteppingPlan(source, observations, actions, limit, True, False, seconds, *how, success)


def _try_own_vector(source: Source, env: gymnasium.vector.VectorEnv, how: How) -> SteppingPlan:
    """As `_try_vector`, of a vector environment that a function made."""
    try:
        observations, actions = _spaces(source, env, *names_of_spaces(env))
        if masks_vector(env, *names_of_spaces(env)):
            raise ValueError(
                f"{source.name} makes a vector environment with action masks, which are not supported there; return a "
                "single environment, or remove the masks of each of them"
            )
        limit, number = sources.time_limit_of_vector(env), env.num_envs
        calls_jax = _calls_jax(source, env, how.processes)
        if (
            source.limit is not None
            and env.metadata.get("autoreset_mode") is not gymnasium.vector.AutoresetMode.DISABLED
        ):
            raise ValueError(
                f"max_episode_steps={source.limit}: {source.name} makes a vector environment that resets itself; give "
                "it a time limit where it is made"
            )
        limit = min(limit, *source.limits())
    finally:
        _close(env)
    seconds, success = _try_steps(source, observations, actions, limit, number, vector=True)
    return SteppingPlan(
        source, observations, actions, limit, True, calls_jax, seconds, *how, success, envs_per_vector=number
    )


def _shapes(observations: Observations) -> list[Any]:
    return [(part.path, part.shape, part.counts, part.axes) for part in observations.parts]


def _sampling_bounds(actions: Actions) -> tuple[np.ndarray, np.ndarray]:
    """Returns finite bounds, at most 1e6 in size where possible, to sample continuous actions from."""
    low, high = actions.space.float32_bounds()
    low = np.where(np.isfinite(low), low, np.minimum(high, 1) - 2)
    high = np.where(np.isfinite(high), high, np.maximum(low, -1) + 2)
    return np.maximum(low, np.minimum(high, -1e6)), np.minimum(high, np.maximum(low, 1e6))


def _make(source: Source, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except RAISED as error:
        raise ValueError(f"{source.name} cannot be created: {described(error)}") from error


def _require_env(name: str, env: Any) -> None:
    """Raises ValueError if `env` is not a `gymnasium.Env`; the message names the nearest alternative."""
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
        return observations_of(found[0]), Actions(action_space_of(found[1]))
    except ValueError as error:
        raise ValueError(f"{source.name}: {error}") from None


def _close(env: Any) -> None:
    """Closes a temporary environment and ignores exceptions."""
    with contextlib.suppress(*RAISED):
        env.close()


def _try_steps(
    source: Source, observations: Observations, actions: Actions, limit: int, num_envs: int, *, vector: bool
) -> tuple[float, bool]:
    """Measures the seconds of a step, and finds whether `info` of the first one says if the episode is a success.

    Raises:
      SimulatorError: the simulator violates Gymnasium's interface.
    """
    sizes = RowSizes(num_envs, observations.size, actions.size, actions.flat_dtype.name, pixels=observations.pixels)
    rows = sizes.on(bytearray(sizes.nbytes()))
    stepper = make_stepper(StepperConfig(source, sizes, (0, num_envs), vector, limit), rows)
    rng, durations, success = np.random.default_rng(0), [], False
    try:
        stepper.reset()
        start = time.perf_counter()
        while len(durations) < TIMED_STEPS and (not durations or time.perf_counter() < start + TIMED_SECONDS):
            if source.masks is not None:
                rows.action[:] = draw_legal(rows.obs, actions.counts, rng)
            elif actions.counts:
                rows.action[:] = rng.integers(0, actions.counts, rows.action.shape)
            else:
                rows.action[:] = rng.uniform(*_sampling_bounds(actions), rows.action.shape)
            np.greater_equal(rows.elapsed, limit - 1, out=rows.end)  # beyond it, a simulator may not be stepped
            before = time.perf_counter()
            stepper.step(0, num_envs)
            durations.append(time.perf_counter() - before)
            if len(durations) == 1:  # not later, as the number of steps depends on their duration
                success = stepper.reports(SUCCESS)
    finally:
        stepper.close()
    return max(float(np.median(durations)) - STEPPER_SECONDS, 0.0), success
