"""Gymnasium environments that can be stepped from compiled code."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from jaxtrpo.envs import base, foreign
from jaxtrpo.envs.gymnasium.errors import SimulatorError
from jaxtrpo.envs.gymnasium.rendering import episode_frames
from jaxtrpo.envs.gymnasium.simulators import HANDLE_SIZE, Host, hosts
from jaxtrpo.envs.gymnasium.stepping_plan import SUCCESS, SUCCESS_COLUMN, SteppingPlan


class GymnasiumEnvironment:
    """Environments whose simulators are Python objects (see `jaxtrpo.envs.base.Environment`).

    `EnvState.physics` is a handle, uint32 [env, 4]; or a handle and entries of `info`, float32 [env, column], if there
    are `info_columns`. One object has one set of simulators: a state from before its last
    reset or its last step is rejected. Only the first episode is seeded; later ones begin with `env.reset()`, as is
    Gymnasium's convention. `EnvState.elapsed` = `episode_length` - 1 truncates the episode at the next step, except in
    vector environments that reset by themselves.

    A vector environment is seeded as a whole, so its trajectories depend on its number of environments. In Gymnasium's
    NEXT_STEP mode, the step after the end of an episode only resets: it is `invalid` and `truncated`, and its
    `final_obs` is the observation before it.

    If a simulator fails, `failure` holds the error and compiled code continues: steps are `invalid`, initial
    observations are zero. The caller must check for failures (see `jaxtrpo.envs.abilities.require_working`).
    """

    saves_state = False

    def __init__(self, plan: SteppingPlan, attributes: Mapping[str, Any] = MappingProxyType({})):
        """Prepares simulators, which get `attributes` when they are started (see `jaxtrpo.set_env`)."""
        self.plan = plan
        self.name = plan.source.name
        self.observations = plan.observations
        self.observation_space = plan.observations.space
        self.observation_size, self.action_size = self.observation_space.size, plan.actions.size
        self.action_low, self.action_high, self.action_counts, self.action_shape = plan.actions.space
        self.episode_length = plan.episode_length
        self.info_columns = tuple(column for column, _ in plan.info)
        self.envs_per_simulator = plan.envs_per_vector or 1
        self.wastes_steps = plan.vector  # steps that only reset, in NEXT_STEP mode
        self._host = Host(plan, attributes)
        self._closing = weakref.finalize(self, self._host.close)

    @property
    def failure(self) -> SimulatorError | None:
        """First error of a simulator, after which every call fails; copies of the environment are not affected."""
        return self._host.failure

    def reset(self, key: PRNGKeyArray | UInt32[Array, "2"], num_envs: int) -> base.EnvState:
        """Starts `num_envs` simulators; the seed of environment i is derived from `key` and i."""
        if num_envs % self.envs_per_simulator:
            raise ValueError(
                f"num_envs={num_envs} must be a multiple of {self.envs_per_simulator}, the size of the vector "
                f"environment {self.name}"
            )
        keys = base.env_keys(key, num_envs)
        shapes = (
            jax.ShapeDtypeStruct((num_envs, HANDLE_SIZE), jnp.uint32),
            jax.ShapeDtypeStruct((num_envs, self.observations.size), jnp.float32),
            *self._images(num_envs, 1),
        )
        call = jax.ffi.ffi_call("jaxtrpo_gymnasium_reset", shapes, has_side_effect=True)
        handle, obs, *pixels = call(keys, host=np.int64(self._host.number))
        obs = self._joined(obs, pixels)
        no, zero = jnp.zeros(num_envs, bool), jnp.zeros(num_envs, jnp.float32)
        nothing = jnp.full((num_envs, len(self.info_columns)), jnp.nan, jnp.float32)
        physics = (handle, nothing) if self.info_columns else handle
        return base.EnvState(physics, obs, obs, zero, no, no, no, jnp.zeros(num_envs, jnp.int32), keys)

    def step(
        self, state: base.EnvState, action: Float[Array, "env action"] | Int[Array, "env action"]
    ) -> base.EnvState:
        """Applies one action to each environment: choices counted from 0, or numbers in the simulator's units."""
        num_envs = len(state.reward)
        of_obs = jax.ShapeDtypeStruct((num_envs, self.observations.size), jnp.float32)
        if action.shape != (num_envs, self.action_size):
            raise ValueError(f"actions have shape {action.shape}, expected {(num_envs, self.action_size)}")
        action = jnp.asarray(action, self.plan.actions.flat_dtype)
        handle, *info = state.physics if self.info_columns else (state.physics,)
        fields = [handle, of_obs, of_obs, *state[3:8], *info, *self._images(num_envs, 2)]  # all but the key
        shapes = [jax.ShapeDtypeStruct(field.shape, field.dtype) for field in fields]
        call = jax.ffi.ffi_call("jaxtrpo_gymnasium_step", shapes, has_side_effect=True)
        # The handle identifies the host, so environments of equal sizes share compiled code.
        results = call(handle, action, state.elapsed, host=np.int64(0))
        if self.observations.pixels:
            *results, pixels, final_pixels = results
            results[1:3] = self._joined(results[1], [pixels]), self._joined(results[2], [final_pixels])
        after = state._replace(**dict(zip(state._fields, results[:8], strict=False)))  # all but the key
        return after._replace(physics=(results[0], results[8])) if info else after

    def _images(self, num_envs: int, number: int) -> list[jax.ShapeDtypeStruct]:
        """Returns the shapes in which the images of `number` observations are passed; none without images."""
        pixels = self.observations.pixels
        return [jax.ShapeDtypeStruct((num_envs, pixels), jnp.uint8)] * number if pixels else []

    def _joined(self, rows: Array, pixels: list[Array]) -> Any:
        return self.observations.joined(rows, pixels[0]) if pixels else rows

    def info(self, state: base.EnvState) -> dict[str, Float[Array, " env"]]:
        """Returns the reported entries of `info` by column: those of the last episode that ended, or NaN."""
        return {column: state.physics[1][:, i] for i, column in enumerate(self.info_columns)}

    def with_info(self, names: tuple[str, ...], *, success: bool) -> GymnasiumEnvironment:
        """Returns the environment that reports entries of `info`; itself, if there is nothing to change.

        Args:
          names: entries, which are columns of the same names.
          success: also report `is_success` as `success_rate`, if `info` has it from the first step on.
        """
        columns = {name: name for name in names}
        if success and self.plan.reports_success:
            columns = {SUCCESS_COLUMN: SUCCESS} | columns
        plan = dataclasses.replace(self.plan, info=tuple(columns.items()))
        return self if plan.info == self.plan.info else self._planned(plan)

    def flatten(self, obs: Any) -> Any:
        """Converts an observation in the simulator's form, or a batch of them."""
        return self.plan.observations.flatten(obs)

    def watched(
        self, act: Callable[[Any], Any], seed: int, width: int, height: int
    ) -> tuple[float, Iterator[tuple[np.ndarray, float]]]:
        """Renders an episode of a separate simulator in this process, which determines the size of the frames.

        Args:
          act: observations with the leading axis 1 -> flat actions [1, action].
          seed: seed of the initial state.
          width: ignored.
          height: ignored.

        Returns:
          Seconds per frame, and an iterator over (frame, return up to the frame).

        Raises:
          ValueError: the environment cannot be rendered.
        """
        del width, height
        return episode_frames(self.plan, act, seed, base.most_steps(self))

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Sets attributes of all simulators (see `jaxtrpo.set_env`)."""
        self._host.set_attributes(attributes)

    @property
    def times_changed(self) -> int:
        """How often attributes of the simulators were set."""
        return self._host.times_changed

    def copy(self) -> GymnasiumEnvironment:
        """Returns the same environment with separate simulators, which its first reset starts."""
        return GymnasiumEnvironment(self.plan)

    def for_groups(self, groups: int) -> GymnasiumEnvironment:
        """Returns the environment for `groups` actors: a copy if they would share a vector environment, else itself."""
        return self if self.plan.serves(groups) else self._planned(dataclasses.replace(self.plan, groups=groups))

    def _planned(self, plan: SteppingPlan) -> GymnasiumEnvironment:
        """Returns the environment with another plan, whose simulators get the attributes that were set so far."""
        return GymnasiumEnvironment(plan, self._host.attributes)

    def close(self) -> None:
        """Closes the simulators and their processes; a reset starts new ones."""
        self._host.close()

    def abandon(self) -> None:
        """Closes the simulators for good; steps of compiled code that is still running are `invalid`."""
        self._host.abandon()


def _reset(number: int, keys: np.ndarray, handle: np.ndarray, *obs: np.ndarray) -> None:
    host = hosts.get(number)
    if host is None:
        raise SimulatorError("the environment to reset no longer exists; keep a reference to it")
    try:
        host.reset(keys, handle, *obs)
    except SimulatorError:
        handle[:] = host.number  # lets later steps find the failure
        for array in obs:
            array[:] = 0


def _step(_: int, handle: np.ndarray, action: np.ndarray, elapsed: np.ndarray, *results: np.ndarray) -> None:
    host = hosts.get(int(handle[0, 0]))
    if host is None:
        raise SimulatorError("the environment of this state no longer exists or belongs to another process")
    try:
        host.step(handle, action, elapsed, *results)
    except SimulatorError:
        if host.failure is None:
            raise
        # An exception would leave other actors waiting at the next collective, and XLA would abort the process.
        _write_invalid(handle, results)


def _write_invalid(handle: np.ndarray, results: tuple[np.ndarray, ...]) -> None:
    """Writes invalid steps that end every episode, so that compiled code terminates."""
    new_handle, obs, final_obs, reward, terminated, truncated, invalid, elapsed, *info = results
    new_handle[:] = handle
    for array in (obs, final_obs, reward, terminated, elapsed, *info):
        array[:] = 0
    truncated[:] = invalid[:] = True


foreign.register("jaxtrpo_gymnasium_reset", _reset)
foreign.register("jaxtrpo_gymnasium_step", _step)
