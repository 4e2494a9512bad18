"""What every environment looks like, and the one place where episodes end and start again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray, PyTree, UInt32

from jaxtrpo.envs.abilities import actions_of
from jaxtrpo.envs.actions import ActionSpace as ActionSpace
from jaxtrpo.parallel.collectives import max_over_trainings


class EnvState(NamedTuple):
    """A batch of environments between two steps. The first axis of every leaf is the environment."""

    # Whatever the engine needs; opaque to everybody else, but for a field `parameters`, if there is one: a dictionary
    # of arrays [env, ...] that `jaxtrpo.set_env` changes.
    physics: PyTree
    # What the next action sees: after an automatic reset, the first of the new episode. Flat observations are float32
    # [env, obs], those with images a dictionary (see `observation_space`).
    obs: PyTree
    final_obs: PyTree  # as `obs`; what the last step led to, before any reset; bootstrap from this one
    reward: Float[Array, " env"]  # of the last step; 0 where `invalid`
    terminated: Bool[Array, " env"]  # the last step ended the episode for good: nothing follows
    truncated: Bool[Array, " env"]  # the last step ended it early (time limit, or `invalid`): more would have followed
    invalid: Bool[Array, " env"]  # the last step was not finite: it is not learned from; `final_obs` is before it
    # Steps taken in the running episode. Training raises it in the last step of an episode that it shortens.
    elapsed: Int[Array, " env"]
    key: UInt32[Array, "env 2"]  # one random key per environment, so results do not depend on the actors
    # Which choices the next action may take, of all its coordinates one after another; (): all of them, always.
    mask: Bool[Array, "env choices"] | tuple[()] = ()


@runtime_checkable
class Environment(Protocol):
    """Many copies of one task, stepped together by pure functions.

    `reset` and `step` are compiled as part of larger functions, and can also be called directly. If a step ends an
    episode, the environment starts the next one in the same step. A step must end an episode whose `elapsed` reaches
    `episode_length` with it.

    Optional abilities, such as rendering, are defined in `jaxtrpo.envs.abilities`.
    """

    name: str  # in files and messages
    observation_size: int  # numbers in an observation
    action_size: int  # coordinates of an action
    action_low: Num[np.ndarray, " action"]  # in the simulator's units and dtype
    action_high: Num[np.ndarray, " action"]  # as `action_low`
    episode_length: int  # steps after which an episode is truncated; the largest int32 if it never is

    def reset(self, key: PRNGKeyArray | UInt32[Array, "2"], num_envs: int) -> EnvState:
        """Starts `num_envs` episodes; environment i depends on `key` and i only."""
        ...

    def step(self, state: EnvState, action: Float[Array, "env action"] | Int[Array, "env action"]) -> EnvState:
        """Applies one action to each environment, and resets those whose episode ends with it.

        Actions are numbers in the simulator's units or, with `action_counts` (see `abilities.Discrete`), int32 choices
        counted from 0.
        """
        ...


NO_TIME_LIMIT = np.iinfo(np.int32).max
# Where whole episodes are wanted of an environment that need not end them, as to evaluate a policy.
MOST_STEPS_WITHOUT_LIMIT = 10_000


def has_time_limit(env: Environment) -> bool:
    """Whether every episode ends."""
    return env.episode_length < NO_TIME_LIMIT


def most_steps(env: Environment) -> int:
    """Returns the largest number of steps for which an evaluation or a video follows an episode."""
    return env.episode_length if has_time_limit(env) else MOST_STEPS_WITHOUT_LIMIT


def require_time_limit(env: Environment, setting: str) -> None:
    """Checks that episodes have a time limit, where their end is waited for.

    Raises:
      ValueError: the environment has no time limit; one sentence that names the setting.
    """
    if not has_time_limit(env):
        raise ValueError(
            f"{setting}: {env.name} has no time limit, so an episode may never end; set one with max_episode_steps "
            "(--max-episode-steps)"
        )


def action_space(env: Environment) -> ActionSpace:
    """The actions of an environment."""
    counts, shape = actions_of(env)
    return ActionSpace(np.asarray(env.action_low), np.asarray(env.action_high), counts, shape)


class Transition(NamedTuple):
    """What one step of the engine led to, before anything is reset."""

    physics: PyTree  # as `EnvState.physics`
    obs: PyTree  # as `EnvState.obs`
    reward: Float[Array, " env"]  # of the step
    terminated: Bool[Array, " env"]  # the step ended the episode for good
    finite: Bool[Array, " env"]  # False where the engine left the numbers it can handle


# (keys of one episode each, which to reset, physics now) -> (physics, first observation); rows not to reset are kept
ResetRows = Callable[[UInt32[Array, "env 2"], Bool[Array, " env"], PyTree], tuple[PyTree, PyTree]]

LARGEST_OBSERVATION = 1e10  # MuJoCo's own bound on a state that is still worth simulating (mjMAXVAL)


def env_keys(key: PRNGKeyArray | UInt32[Array, "2"], num_envs: int) -> UInt32[Array, "env 2"]:
    """One key an environment; the i-th is the same however many there are."""
    data = key if key.dtype == jnp.uint32 else jax.random.key_data(key)
    return jax.vmap(jax.random.fold_in, (None, 0))(data, jnp.arange(num_envs))


def start(key: PRNGKeyArray | UInt32[Array, "2"], num_envs: int, reset_rows: ResetRows, physics: PyTree) -> EnvState:
    """First state of `num_envs` environments whose `physics` may hold anything."""
    keys, now = _split(env_keys(key, num_envs))
    physics, obs = reset_rows(now, jnp.ones(num_envs, bool), physics)
    no = jnp.zeros(num_envs, bool)
    zero = jnp.zeros(num_envs, jnp.float32)
    return EnvState(physics, obs, obs, zero, no, no, no, jnp.zeros(num_envs, jnp.int32), keys)


def blank(reset: Callable[[UInt32[Array, "env 2"]], PyTree], num_envs: int) -> PyTree:
    """Zeros like what `reset` makes of so many keys, for `start`."""
    shapes = jax.eval_shape(reset, jax.ShapeDtypeStruct((num_envs, 2), jnp.uint32))
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def of_same_types(new: PyTree, old: PyTree) -> PyTree:
    """A state as the one before: some simulators step from one dtype or weak type to another, which no loop carries."""
    return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), new, old)


def choose_rows(mask: Bool[Array, " env"], new: PyTree, old: PyTree) -> PyTree:
    """Rows of `new` where the mask is true; `old` says of what type they are."""

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(mask.reshape(-1, *[1] * (new.ndim - 1)), new, old).astype(old.dtype)

    return jax.tree.map(choose, new, old)


def advance(state: EnvState, moved: Transition, reset_rows: ResetRows, episode_length: int) -> EnvState:
    """Finishes a step: time limit, environments that stopped being finite, automatic reset.

    Args:
      state: before the step.
      moved: what the engine made of it.
      reset_rows: starts new episodes; only called if one of them is over.
      episode_length: time limit in steps.

    Returns:
      The state after the step. Where the engine's numbers were not finite the step is `invalid` and `truncated`, has
      reward 0, and `final_obs` is the observation before it, so that nothing which is not finite leaves this function.
    """
    healthy = moved.finite & all_within_bounds(moved.obs) & jnp.isfinite(moved.reward)
    elapsed = state.elapsed + 1
    terminated = moved.terminated & healthy
    truncated = ~healthy | ((elapsed >= episode_length) & ~terminated)
    done = terminated | truncated
    final_obs = _where_rows(healthy, moved.obs, state.obs)

    def with_resets() -> tuple[PyTree, PyTree, UInt32[Array, "env 2"]]:
        keys, now = _split(state.key)
        physics, first_obs = reset_rows(now, done, moved.physics)
        # The next step will show whether it is broken.
        first_obs = _map_floats(lambda leaf: jnp.where(jnp.isfinite(leaf), leaf, 0.0), first_obs)
        return physics, _where_rows(done, first_obs, final_obs), jnp.where(done[:, None], keys, state.key)

    with jax.named_scope("reset"):
        physics, obs, key = jax.lax.cond(
            max_over_trainings(jnp.any(done)), with_resets, lambda: (moved.physics, final_obs, state.key)
        )
    return EnvState(
        physics=physics,
        obs=obs,
        final_obs=final_obs,
        reward=jnp.where(healthy, moved.reward, 0.0),
        terminated=terminated,
        truncated=truncated,
        invalid=~healthy,
        elapsed=jnp.where(done, 0, elapsed),
        key=key,
    )


def _where_rows(mask: Bool[Array, " env"], new: PyTree, old: PyTree) -> PyTree:
    """Rows of observations: those of `new` where the mask is true."""

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(mask[(slice(None), *(None,) * (new.ndim - 1))], new, old)

    return jax.tree.map(choose, new, old)


def _map_floats(function: Callable[[Array], Array], obs: PyTree) -> PyTree:
    """Applies a function to the arrays of observations that may not be finite."""
    return jax.tree.map(lambda leaf: function(leaf) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, obs)


def all_within_bounds(obs: PyTree) -> Bool[Array, ""] | Bool[Array, " env"] | bool:
    """Returns where all numbers of observations are finite and worth simulating."""
    within = [
        jnp.all(jnp.abs(leaf) <= LARGEST_OBSERVATION, axis=tuple(range(1, leaf.ndim)))
        for leaf in jax.tree.leaves(obs)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    return functools.reduce(jnp.logical_and, within, True) if len(within) != 1 else within[0]


def _split(keys: UInt32[Array, "env 2"]) -> tuple[Any, Any]:
    both = jax.vmap(jax.random.split)(keys)
    return both[:, 0], both[:, 1]
