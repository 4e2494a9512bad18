"""Whole episodes of a policy: their returns, and recordings of their steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num, PyTree, UInt32

from jaxtrpo.envs.actions import make_converter
from jaxtrpo.envs.base import MOST_STEPS_WITHOUT_LIMIT, Environment, EnvState, action_space, has_time_limit
from jaxtrpo.ops.moments import Moments, normalize
from jaxtrpo.parallel.actors import Actors
from jaxtrpo.policies.action_units import to_simulator
from jaxtrpo.policies.distributions import Distribution
from jaxtrpo.policies.masking import input_of
from jaxtrpo.policies.networks import Policy
from jaxtrpo.policies.recurrence import initial_carry

RECORDED_AT_ONCE = 50  # steps per program; divides MOST_STEPS_WITHOUT_LIMIT


class Recording(NamedTuple):
    """Steps of episodes, one episode after the other; all arrays have one entry per step."""

    observations: Any  # before the step, not normalised: flat float32, or a dictionary with images
    actions: np.ndarray  # in the simulator's form
    rewards: np.ndarray  # float32; NaN for an invalid step
    terminated: np.ndarray  # whether the episode ended with the step
    truncated: np.ndarray  # whether the time limit ended the episode with the step
    episodes: np.ndarray  # number of the episode, from 0


class Episodes(NamedTuple):
    """The first episode of each environment."""

    env: EnvState
    total: Float[Array, " env"]  # rewards so far
    finished: Bool[Array, " env"]
    steps: Int[Array, ""]
    carry: PyTree  # of a policy with memory, else ()


class _Recorded(NamedTuple):
    """One step of all environments, or arrays [env, time, ...] in NumPy."""

    obs: Any
    action: Any  # flat, in simulator units
    reward: Any
    terminated: Any
    truncated: Any
    counts: Any  # whether the episode had not finished before


Keys = UInt32[Array, "env 2"]  # of the actions' noise
# (initial state, policy parameters, observation moments[, keys]) -> (returns, whether each episode has ended)
Rollout = Callable[..., tuple[Float[Array, " env"], Bool[Array, " env"]]]
_Step = Callable[[Episodes, PyTree, Moments, Keys | None], tuple[Episodes, _Recorded]]


def make_rollout(env: Environment, policy: Policy, *, stochastic: bool = False) -> Rollout:
    """Builds the function that runs the first episode of each environment.

    Without a time limit, it stops after `MOST_STEPS_WITHOUT_LIMIT` steps. Environments that finish early are stepped on
    until the last one has finished, without effect on the results.

    Args:
      env: environment to step.
      policy: policy that acts.
      stochastic: sample actions from the policy; otherwise, it acts with the mode of its distributions.

    Returns:
      (initial state, policy parameters, observation moments) -> (returns, whether each episode has ended); if
      `stochastic`, a random key per environment is a further argument.
    """
    step = _make_step(env, policy, stochastic)

    def rollout(start: EnvState, params: PyTree, moments: Moments, keys: Keys | None = None) -> tuple[Array, Array]:
        begun = _begun(start, policy)
        last = jax.lax.while_loop(
            lambda episodes: _unfinished(env, episodes),
            lambda episodes: step(episodes, params, moments, keys)[0],
            begun,
        )
        return last.total, last.finished

    return rollout


# (initial state, policy parameters, observation moments, keys), all per actor -> (returns, whether each episode has
# ended) per actor, and their recording
Recorder = Callable[..., tuple[Array, Array, Recording]]


def make_recorder(env: Environment, policy: Policy, actors: Actors, episodes: int, *, stochastic: bool) -> Recorder:
    """Builds a function like that of `make_rollout`, mapped over actors, which also records the first `episodes`."""
    step = _make_step(env, policy, stochastic)

    def some_steps(before: Episodes, params: PyTree, moments: Moments, *keys: Keys) -> tuple:
        after, steps = jax.lax.scan(
            lambda carry, _: step(carry, params, moments, keys[0] if keys else None),
            before,
            length=RECORDED_AT_ONCE,
        )
        return after, steps, _unfinished(env, after)

    begin, advance = actors.map(lambda start: _begun(start, policy)), actors.map(some_steps)

    def record(start: EnvState, params: PyTree, moments: Moments, *keys: Keys) -> tuple[Array, Array, Recording]:
        now, unfinished, parts = begin(start), np.ones(1, bool), []
        while np.any(unfinished):
            now, steps, unfinished = jax.block_until_ready(advance(now, params, moments, *keys))
            parts.append(jax.tree.map(_in_episodes, jax.device_get(steps)))
        whole = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1)[:episodes], *parts)
        return now.total, now.finished, _as_recording(whole, env)

    return record


def _make_step(env: Environment, policy: Policy, stochastic: bool) -> _Step:
    space = action_space(env)

    def sampled(distribution: Distribution, keys: Keys, number: Int[Array, ""]) -> Num[Array, "..."]:
        draw = jax.vmap(lambda key: policy.draw_noise(jax.random.fold_in(key, number), (policy.noise_size,)))
        return distribution.sample(draw(keys))

    def step(before: Episodes, params: PyTree, moments: Moments, keys: Keys | None) -> tuple[Episodes, _Recorded]:
        now = before.env
        inputs = input_of(policy, normalize(now.obs, moments), now.mask)
        distribution, carry = policy.step(params, before.carry, inputs, now.elapsed == 0)
        if stochastic:
            assert keys is not None
            action = to_simulator(sampled(distribution, keys, before.steps), space)
        else:
            action = to_simulator(distribution.mode(), space)
        after = env.step(before.env, action)
        reward = jnp.where(after.invalid, jnp.nan, after.reward)
        total = before.total + jnp.where(before.finished, 0.0, reward)
        finished = before.finished | after.terminated | after.truncated
        recorded = _Recorded(now.obs, action, reward, after.terminated, after.truncated, ~before.finished)
        return Episodes(after, total, finished, before.steps + 1, carry), recorded

    return step


def _begun(start: EnvState, policy: Policy) -> Episodes:
    num_envs = len(start.reward)
    carry = initial_carry(policy.recurrence, num_envs)
    return Episodes(start, jnp.zeros(num_envs), jnp.zeros(num_envs, bool), jnp.int32(0), carry)


def _unfinished(env: Environment, episodes: Episodes) -> Bool[Array, ""]:
    running = ~jnp.all(episodes.finished)
    # With a time limit, the environment ends every episode.
    return running if has_time_limit(env) else running & (episodes.steps < MOST_STEPS_WITHOUT_LIMIT)


def _in_episodes(leaf: np.ndarray) -> np.ndarray:
    """[actor, time, env of the actor, ...] -> [env, time, ...]."""
    return np.moveaxis(leaf, 2, 1).reshape(-1, leaf.shape[1], *leaf.shape[3:])


def _as_recording(steps: _Recorded, env: Environment) -> Recording:
    """Joins episodes [env, time, ...], without the steps after their ends."""
    counts = steps.counts
    return Recording(
        observations=jax.tree.map(lambda leaf: leaf[counts], steps.obs),
        actions=make_converter(action_space(env))(steps.action[counts]),
        rewards=steps.reward[counts],
        terminated=steps.terminated[counts],
        truncated=steps.truncated[counts],
        episodes=np.nonzero(counts)[0].astype(np.int32),
    )
