"""A simulator of Gymnasium's kind that is made to be seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxtrpo.config.messages import described
from jaxtrpo.envs.gymnasium.stepping_plan import Plan

PICTURES = "rgb_array"
USUAL_FPS = 30


def watched(
    plan: Plan, act: Callable[[np.ndarray], Any], seed: int, most_steps: int
) -> tuple[float, Iterator[tuple[np.ndarray, float]]]:
    """See `GymnasiumEnvironment.watched`."""
    env = _made(plan)
    fps = env.metadata.get("render_fps") or USUAL_FPS

    def episode() -> Iterator[tuple[np.ndarray, float]]:
        try:
            obs, _ = env.reset(seed=seed)
            total, over, steps = 0.0, False, 0
            while not over:
                yield np.asarray(env.render(), np.uint8), total
                action = np.asarray(act(plan.observations.flatten(obs)[None]))
                obs, reward, terminated, truncated, _ = env.step(plan.actions.each(action)[0])
                total, steps = total + float(reward), steps + 1
                over = terminated or truncated or steps >= most_steps
        finally:
            env.close()

    return 1 / fps, episode()


def _made(plan: Plan) -> Any:
    source = plan.source
    if source.maker is None:
        source = dataclasses.replace(source, options={**source.options, "render_mode": PICTURES})
    try:
        env = source.make_single()
    except Exception as error:
        raise ValueError(f"{source.name} has no pictures of itself: {described(error)}") from error
    if env.render_mode != PICTURES:
        env.close()
        raise ValueError(f"{source.name} has no pictures of itself: make it with render_mode={PICTURES!r}")
    return env
