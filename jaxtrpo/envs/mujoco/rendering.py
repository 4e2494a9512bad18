"""Rendering of states of the C engine."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator

import mujoco
import numpy as np
from jaxtyping import UInt8, UInt32

from jaxtrpo.envs.mujoco.layout import Layout

FULL_STATE = (1 << int(mujoco.mjtState.mjNSTATE)) - 1

# Size of the shadow map in pixels; with MuJoCo's default of 4,096 and no GPU, shadows take three quarters of the time.
SHADOW_SIZE = 1024


def render(
    model: mujoco.MjModel, layout: Layout, states: Iterable[UInt32[np.ndarray, " bits"]], width: int, height: int
) -> Iterator[UInt8[np.ndarray, "height width 3"]]:
    """Renders a frame for each state with MuJoCo's renderer, whose OpenGL backend must be set before importing MuJoCo.

    `runs.view.opengl` chooses a backend.

    Args:
      model: compiled model.
      layout: layout of the states.
      states: state rows, as carried by JAX.
      width: width of the frames in pixels.
      height: height of the frames in pixels.
    """
    model = copy.copy(model)
    data = mujoco.MjData(model)
    row = np.empty(mujoco.mj_stateSize(model, FULL_STATE))
    mujoco.mj_getState(model, data, row, FULL_STATE)
    # The offscreen buffer that the model specifies may be smaller than the frames.
    model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
    model.vis.global_.offheight = max(model.vis.global_.offheight, height)
    model.vis.quality.shadowsize = min(model.vis.quality.shadowsize, SHADOW_SIZE)
    camera = _camera(model)
    with mujoco.Renderer(model, height, width) as renderer:
        for state in states:
            numbers, start = np.ascontiguousarray(state).view(np.float64), 0
            for part in layout.carried:
                row[part] = numbers[start : start + part.stop - part.start]
                start += part.stop - part.start
            mujoco.mj_setState(model, data, row, FULL_STATE)
            mujoco.mj_forward(model, data)
            renderer.update_scene(data, camera)
            yield renderer.render().copy()


def _camera(model: mujoco.MjModel) -> int | mujoco.MjvCamera:
    """Returns the model's first camera, or a free camera that tracks the first body."""
    if model.ncam:
        return 0
    camera = mujoco.MjvCamera()
    mujoco.mjv_defaultFreeCamera(model, camera)
    if model.nbody > 1:
        camera.type, camera.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, 1
    return camera
