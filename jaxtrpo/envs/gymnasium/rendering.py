"""Rendering of episodes by a Gymnasium simulator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import jax
import numpy as np

from jaxtrpo.config.messages import described, short
from jaxtrpo.envs.gymnasium.other_python import NamedSource
from jaxtrpo.envs.gymnasium.stepping_plan import SteppingPlan

RENDER_MODE = "rgb_array"
DEFAULT_FPS = 30


def episode_frames(
    plan: SteppingPlan, act: Callable[[Any], Any], seed: int, max_steps: int
) -> tuple[float, Iterator[tuple[np.ndarray, float]]]:
    """Implements `GymnasiumEnvironment.watched`."""
    env = _make_renderable(plan)
    fps = env.metadata.get("render_fps") or DEFAULT_FPS

    def episode() -> Iterator[tuple[np.ndarray, float]]:
        try:
            obs, _ = env.reset(seed=seed)
            total, over, steps = 0.0, False, 0
            while not over:
                yield _frame(plan.source.name, env), total
                rows = jax.tree.map(lambda leaf: leaf[None], plan.observations.flatten(obs))
                action = np.asarray(act(rows))
                obs, reward, terminated, truncated, _ = env.step(plan.actions.each(action)[0])
                total, steps = total + float(reward), steps + 1
                over = terminated or truncated or steps >= max_steps
            yield _frame(plan.source.name, env), total
        finally:
            env.close()

    return 1 / fps, episode()


def _frame(name: str, env: Any) -> np.ndarray:
    frame = env.render()
    if np.ndim(frame) != 3 or np.shape(frame)[-1] != 3:
        raise ValueError(f"{name}: render() must return a picture [height, width, 3], not {short(frame)}")
    return np.asarray(frame, np.uint8)


def _make_renderable(plan: SteppingPlan) -> Any:
    source = plan.source
    if isinstance(source, NamedSource):
        raise ValueError(f"{source.name} runs in another interpreter, {source.python}, and cannot be rendered")
    if source.maker is None:
        source = dataclasses.replace(source, options={**source.options, "render_mode": RENDER_MODE})
    try:
        env = source.make_single()
    except Exception as error:
        raise ValueError(f"{source.name} cannot be rendered: {described(error)}") from error
    if isinstance(env, gymnasium.vector.VectorEnv):
        env.close()
        raise ValueError(f"{source.name} makes a vector environment, which cannot be rendered; use a single one")
    if env.render_mode != RENDER_MODE:
        env.close()
        raise ValueError(f"{source.name} cannot be rendered; create it with render_mode={RENDER_MODE!r}")
    return env
