"""Rendering of an episode of a policy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from jaxtrpo.envs.abilities import Renderable, Watchable, has
from jaxtrpo.envs.base import Environment, EnvState, action_space, most_steps
from jaxtrpo.envs.registry import environment_for
from jaxtrpo.ops.moments import normalize
from jaxtrpo.policies.masking import input_of
from jaxtrpo.policies.recurrence import initial_carry
from jaxtrpo.policies.trained import TrainedPolicy, likeliest_step
from jaxtrpo.rollout.evaluation import evaluation_key, require_fitting, where_to_act


class Frame(NamedTuple):
    """Image of one time step."""

    picture: np.ndarray  # uint8 [height, width, 3]
    total: float  # return up to this step


class RenderedEpisode(NamedTuple):
    """Frames of one episode."""

    frames: Iterator[Frame]  # one per environment step, rendered on demand
    seconds_per_step: float  # simulated seconds


def render_episode(
    policy: TrainedPolicy,
    env: str | Environment | Callable[[], Any] | None = None,
    *,
    seed: int = 0,
    width: int = 480,
    height: int = 360,
) -> RenderedEpisode:
    """Renders an episode of the deterministic policy.

    Args:
      policy: policy that acts; must fit the environment.
      env: environment, as for `evaluate`, that can be rendered; a function must create it with
        `render_mode="rgb_array"`.
      seed: seed of the initial state.
      width: width of the frames in pixels.
      height: height of the frames in pixels.

    Returns:
      An iterator over the frames, and the simulated seconds per frame.

    Raises:
      ValueError: there is no such environment, it cannot be rendered, or the policy does not fit it.
    """
    where, limit, options = where_to_act(policy, env, None)
    env, close = environment_for(where, 1, limit, options)
    try:
        if not (has(env, Watchable) or has(env, Renderable)):
            raise ValueError(f"{env.name} cannot be rendered")
        require_fitting(policy, env)
        episode = _render(policy, env, seed, width, height)
    except BaseException:
        close()
        raise
    return episode._replace(frames=_closing(episode.frames, close))


def _closing(frames: Iterator[Frame], close: Callable[[], object]) -> Iterator[Frame]:
    """Yields frames, and closes the simulators that draw them when these end or are no longer wanted."""
    try:
        yield from frames
    finally:
        close()


def _render(policy: TrainedPolicy, env: Environment, seed: int, width: int, height: int) -> RenderedEpisode:
    if has(env, Watchable):
        seconds, frames = env.watched(_remembering(policy, env), seed, width, height)
        return RenderedEpisode((Frame(*frame) for frame in frames), seconds)
    assert has(env, Renderable)
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
