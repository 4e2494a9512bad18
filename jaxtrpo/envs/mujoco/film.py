"""Pictures of simulations on the C engine."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator

import mujoco
import numpy as np
from jaxtyping import UInt8, UInt32

from jaxtrpo.envs.mujoco.native import Layout

EVERYTHING = (1 << int(mujoco.mjtState.mjNSTATE)) - 1

SHADOWS = 1024  # pixels of the map of shadows: with MuJoCo's 4,096 they take three quarters of the time without a GPU


def render(
    model: mujoco.MjModel, layout: Layout, states: Iterable[UInt32[np.ndarray, " bits"]], width: int, height: int
) -> Iterator[UInt8[np.ndarray, "height width 3"]]:
    """A picture of each state, by MuJoCo's own renderer, whose OpenGL must have been chosen (see `runs.view.opengl`).

    Args:
      model: of the simulation.
      layout: of its states.
      states: as JAX carries them.
      width: pixels.
      height: pixels.
    """
    model = copy.copy(model)
    data = mujoco.MjData(model)
    row = np.empty(mujoco.mj_stateSize(model, EVERYTHING))
    mujoco.mj_getState(model, data, row, EVERYTHING)
    # The window that a model is made for may be smaller than what was asked for.
    model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
    model.vis.global_.offheight = max(model.vis.global_.offheight, height)
    model.vis.quality.shadowsize = min(model.vis.quality.shadowsize, SHADOWS)
    camera = _camera(model)
    with mujoco.Renderer(model, height, width) as renderer:
        for state in states:
            numbers, start = np.ascontiguousarray(state).view(np.float64), 0
            for part in layout.carried:
                row[part] = numbers[start : start + part.stop - part.start]
                start += part.stop - part.start
            mujoco.mj_setState(model, data, row, EVERYTHING)
            mujoco.mj_forward(model, data)
            renderer.update_scene(data, camera)
            yield renderer.render().copy()


def _camera(model: mujoco.MjModel) -> int | mujoco.MjvCamera:
    """The model's first camera, or one that follows what moves freely or first."""
    if model.ncam:
        return 0
    camera = mujoco.MjvCamera()
    mujoco.mjv_defaultFreeCamera(model, camera)
    if model.nbody > 1:
        camera.type, camera.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, 1
    return camera
