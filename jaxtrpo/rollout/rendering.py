"""Rendering of an episode of a policy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from jaxtrpo.envs.abilities import Renderable, Watchable
from jaxtrpo.envs.base import Environment, EnvState, action_space, most_steps
from jaxtrpo.ops.moments import normalize
from jaxtrpo.policies.masking import input_of
from jaxtrpo.policies.recurrence import initial_carry
from jaxtrpo.policies.trained import TrainedPolicy, likeliest_step
from jaxtrpo.rollout.evaluation import evaluation_key


class Frame(NamedTuple):
    """Image of one time step."""

    picture: np.ndarray  # uint8 [height, width, 3]
    total: float  # return up to this step


class RenderedEpisode(NamedTuple):
    """Frames of one episode."""

    frames: Iterator[Frame]  # one per environment step, rendered on demand
    seconds_per_step: float  # simulated seconds


def render_episode(
    policy: TrainedPolicy, env: Environment, *, seed: int = 0, width: int = 480, height: int = 360
) -> RenderedEpisode:
    """Renders an episode of the deterministic policy.

    Args:
      policy: policy that acts; must fit the environment.
      env: environment that can be rendered (see `jaxtrpo.envs.abilities`).
      seed: seed of the initial state.
      width: width of the frames in pixels.
      height: height of the frames in pixels.

    Returns:
      An iterator over the frames, and the simulated seconds per frame.

    Raises:
      ValueError: the environment cannot be rendered.
    """
    if isinstance(env, Watchable):
        seconds, frames = env.watched(_remembering(policy, env), seed, width, height)
        return RenderedEpisode((Frame(*frame) for frame in frames), seconds)
    if not isinstance(env, Renderable):
        raise ValueError(f"{env.name} cannot be rendered")
    totals: list[float] = []
    pictures = env.render(_states(policy, env, seed, totals), width, height)
    frames = (Frame(picture, totals[i]) for i, picture in enumerate(pictures))
    return RenderedEpisode(frames, env.seconds_per_step)


def first_seconds(episode: RenderedEpisode, seconds: float) -> RenderedEpisode:
    """Truncates an episode to its first simulated seconds, but to at least one frame."""
    count = max(1, round(seconds / episode.seconds_per_step))
    return episode._replace(frames=itertools.islice(episode.frames, count))


def _make_act(policy: TrainedPolicy, env: Environment) -> Callable[..., tuple[Array, PyTree]]:
    """Returns (carry, observations, mask, where an episode begins) -> (actions, carry); traceable."""
    space, network = action_space(env), policy.network

    def act(carry: PyTree, obs: Array, mask: Any, first: Bool[Array, " env"]) -> tuple[Array, PyTree]:
        inputs = input_of(network, normalize(obs, policy.moments), mask)
        return likeliest_step(network, policy.params, carry, inputs, first, space)

    return act


def _remembering(policy: TrainedPolicy, env: Environment) -> Callable[..., Array]:
    """Returns observations -> actions for one episode of one environment; with masks, these are a second argument."""
    act = jax.jit(_make_act(policy, env))
    carry, first = initial_carry(policy.network.recurrence, 1), np.ones(1, bool)

    def next_action(obs: np.ndarray, mask: Any = ()) -> Array:
        nonlocal carry, first
        action, carry = act(carry, obs, mask, first)
        first = np.zeros(1, bool)
        return action

    return next_action


def _states(policy: TrainedPolicy, env: Environment, seed: int, totals: list[float]) -> Iterator[Any]:
    """Yields `EnvState.physics` of each step, on the host, and appends the return up to it to `totals`.

    The last one comes twice, the second time with the whole return: the state after it is that of the next episode.
    """
    act = _make_act(policy, env)

    @jax.jit
    def step(state: EnvState, carry: PyTree) -> tuple[EnvState, PyTree]:
        action, carry = act(carry, state.obs, state.mask, state.elapsed == 0)
        return env.step(state, action), carry

    state, total, done = jax.jit(env.reset, static_argnums=1)(evaluation_key(seed), 1), 0.0, False
    carry, physics = initial_carry(policy.network.recurrence, 1), None
    for _ in range(most_steps(env)):
        if done:
            break
        totals.append(total)
        physics = jax.tree.map(lambda leaf: np.asarray(leaf)[0], jax.device_get(state.physics))
        yield physics
        state, carry = step(state, carry)
        total += float(state.reward[0])
        done = bool(jnp.any(state.terminated | state.truncated))
    totals.append(total)
    yield physics
