"""An episode of a policy as pictures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxtrpo.envs.base import Environment, action_space, most_steps
from jaxtrpo.policies.trained import TrainedPolicy, likeliest_action
from jaxtrpo.rollout.evaluation import evaluation_key


class Frame(NamedTuple):
    """What is seen at one moment."""

    picture: np.ndarray  # uint8 [height, width, 3]
    total: float  # rewards of the episode so far


class Film(NamedTuple):
    """One episode."""

    frames: Iterator[Frame]  # one an environment step, made when asked for
    seconds_per_step: float  # simulated


def film(policy: TrainedPolicy, env: Environment, *, seed: int = 0, width: int = 480, height: int = 360) -> Film:
    """Films an episode in which a policy acts with its mean.

    Args:
      policy: who acts; fits the environment.
      env: can be seen (see `jaxtrpo.envs.base.Environment`).
      seed: of the first state.
      width: pixels.
      height: pixels.

    Raises:
      ValueError: the environment cannot be seen.
    """
    seen: Any = env  # what it may have beyond an `Environment`
    if hasattr(seen, "watched"):
        seconds, pictures = seen.watched(_actor(policy, env), seed, width, height)
        return Film((Frame(*found) for found in pictures), seconds)
    if not hasattr(seen, "render"):
        raise ValueError(f"{env.name} cannot be rendered")
    totals: list[float] = []
    pictures = seen.render(_episode(policy, env, seed, totals), width, height)
    return Film((Frame(picture, totals[i]) for i, picture in enumerate(pictures)), seen.seconds_per_step)


def beginning(whole: Film, seconds: float) -> Film:
    """What is seen of a film in its first simulated seconds; one picture at least."""
    return whole._replace(frames=itertools.islice(whole.frames, max(1, round(seconds / whole.seconds_per_step))))


def _actor(policy: TrainedPolicy, env: Environment) -> Any:
    space, network = action_space(env), policy.network

    @jax.jit
    def act(obs: Float[Array, "env obs"]) -> Array:
        return likeliest_action(network, policy.params, policy.moments, obs, space)

    return act


def _episode(policy: TrainedPolicy, env: Environment, seed: int, totals: list[float]) -> Iterator[Any]:
    """`EnvState.physics` of each moment, on the host; `totals` gets the return up to there."""
    act = _actor(policy, env)
    step = jax.jit(lambda state: env.step(state, act(state.obs)))
    state, total, over = jax.jit(env.reset, static_argnums=1)(evaluation_key(seed), 1), 0.0, False
    for _ in range(most_steps(env)):
        if over:
            return
        totals.append(total)
        yield jax.tree.map(lambda leaf: np.asarray(leaf)[0], jax.device_get(state.physics))
        state = step(state)
        total += float(state.reward[0])
        over = bool(jnp.any(state.terminated | state.truncated))
