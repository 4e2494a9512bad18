"""Any Gymnasium environment as a batch of environments that compiled code steps."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from jaxtrpo.envs import base, foreign
from jaxtrpo.envs.gymnasium.errors import SimulatorError
from jaxtrpo.envs.gymnasium.rendering import watched
from jaxtrpo.envs.gymnasium.simulators import HANDLE_SIZE, Host, hosts
from jaxtrpo.envs.gymnasium.stepping_plan import Plan


class GymnasiumEnvironment:
    """Simulators that are Python objects (see `jaxtrpo.envs.base.Environment`).

    `EnvState.physics` is a handle, uint32 [env, 4]. One object has one set of simulators: a state from before its last
    reset, or one that was stepped already, is refused. Episodes after the first begin with `env.reset()` without a
    seed, as is Gymnasium's custom. `EnvState.elapsed` = `episode_length` - 1 truncates an episode with the next step;
    vector environments that reset by themselves take no notice.

    A vector environment is seeded as a whole, so what its environments do depends on how many there are in a group.
    In Gymnasium's NEXT_STEP mode the step after an end only resets: it is `invalid` and `truncated`, and its
    `final_obs` is the observation before.

    Where a simulator fails, `failure` says how, and compiled code goes on with steps that are no experience, or first
    observations that are zero: whoever called it has to ask (see `jaxtrpo.envs.abilities.require_working`).
    """

    saves_state = False

    def __init__(self, plan: Plan):
        self.plan = plan
        self.name = plan.source.name
        self.observations = plan.observations
        self.observation_size, self.action_size = plan.observations.size, plan.actions.size
        self.action_low, self.action_high, self.action_counts, self.action_shape = plan.actions.space
        self.episode_length = plan.episode_length
        self.wastes_steps = plan.vector  # in NEXT_STEP mode
        self._host = Host(plan)
        self._closing = weakref.finalize(self, self._host.close)

    @property
    def failure(self) -> SimulatorError | None:
        """What went wrong in a simulator; everything fails after that, except for copies."""
        return self._host.failure

    def reset(self, key: PRNGKeyArray | UInt32[Array, "2"], num_envs: int) -> base.EnvState:
        """Starts `num_envs` simulators, environment i with a seed from `key` and i."""
        keys = base.env_keys(key, num_envs)
        shapes = (
            jax.ShapeDtypeStruct((num_envs, HANDLE_SIZE), jnp.uint32),
            jax.ShapeDtypeStruct((num_envs, self.observation_size), jnp.float32),
        )
        call = jax.ffi.ffi_call("jaxtrpo_gymnasium_reset", shapes, has_side_effect=True)
        handle, obs = call(keys, host=np.int64(self._host.number))
        no, zero = jnp.zeros(num_envs, bool), jnp.zeros(num_envs, jnp.float32)
        return base.EnvState(handle, obs, obs, zero, no, no, no, jnp.zeros(num_envs, jnp.int32), keys)

    def step(
        self, state: base.EnvState, action: Float[Array, "env action"] | Int[Array, "env action"]
    ) -> base.EnvState:
        """Applies one action to each environment: numbers of choices from 0, or numbers in the simulator's units."""
        num_envs = len(state.reward)
        if action.shape != (num_envs, self.action_size):
            raise ValueError(f"actions have shape {action.shape}, expected {(num_envs, self.action_size)}")
        action = jnp.asarray(action, self.plan.actions.flat_dtype)
        like = [state.physics, *state[1:8]]  # all but the key
        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in like]
        call = jax.ffi.ffi_call("jaxtrpo_gymnasium_step", shapes, has_side_effect=True)
        # The handle says whose simulators these are, so that environments of one size share compiled code.
        results = call(state.physics, action, state.elapsed, host=np.int64(0))
        return state._replace(**dict(zip(state._fields, results, strict=False)))  # the key stays

    def flatten(self, obs: Any) -> Float[np.ndarray, "*batch obs"]:
        """The simulator's own observation, or a batch of them, as this environment gives it."""
        return self.plan.observations.flatten(obs)

    def watched(
        self, act: Callable[[np.ndarray], Any], seed: int, width: int, height: int
    ) -> tuple[float, Iterator[tuple[np.ndarray, float]]]:
        """An episode in a simulator that is made to be seen, in this process; it has the size that it likes.

        Args:
          act: (flat observations [1, obs]) -> flat actions [1, action].
          seed: of the first state.
          width: not used.
          height: not used.

        Returns:
          Simulated seconds of a step; and pictures with the return up to each.

        Raises:
          ValueError: it has no pictures of itself.
        """
        del width, height
        return watched(self.plan, act, seed, base.most_steps(self))

    def copy(self) -> GymnasiumEnvironment:
        """The same environment with simulators of its own, which its first reset starts."""
        return GymnasiumEnvironment(self.plan)

    def for_groups(self, groups: int) -> GymnasiumEnvironment:
        """The same environment for so many actors: this one, or a copy where vector environments would be shared."""
        return self if self.plan.serves(groups) else GymnasiumEnvironment(dataclasses.replace(self.plan, groups=groups))

    def close(self) -> None:
        """Ends the simulators and their processes; a reset starts others."""
        self._host.close()

    def abandon(self) -> None:
        """Ends them for good. Compiled code that was interrupted may still run: its steps are no experience."""
        self._host.abandon()


def _reset(number: int, keys: np.ndarray, handle: np.ndarray, obs: np.ndarray) -> None:
    host = hosts.get(number)
    if host is None:
        raise SimulatorError("the environment to be reset does not exist any more")
    try:
        host.reset(keys, handle, obs)
    except SimulatorError:
        handle[:] = host.number  # so that steps find the failure
        obs[:] = 0


def _step(_: int, handle: np.ndarray, action: np.ndarray, elapsed: np.ndarray, *results: np.ndarray) -> None:
    host = hosts.get(int(handle[0, 0]))
    if host is None:
        raise SimulatorError("the environment of this state does not exist any more, or is one of another process")
    try:
        host.step(handle, action, elapsed, *results)
    except SimulatorError:
        if host.failure is None:
            raise
        # An actor that stopped here would leave others waiting for it where they meet, and XLA would end the process.
        _write_nothing(handle, results)


def _write_nothing(handle: np.ndarray, results: tuple[np.ndarray, ...]) -> None:
    """Steps that are no experience and end every episode, so that compiled code comes to its end."""
    new_handle, obs, final_obs, reward, terminated, truncated, invalid, elapsed = results
    new_handle[:] = handle
    for array in (obs, final_obs, reward, terminated, elapsed):
        array[:] = 0
    truncated[:] = invalid[:] = True


foreign.register("jaxtrpo_gymnasium_reset", _reset)
foreign.register("jaxtrpo_gymnasium_step", _step)
