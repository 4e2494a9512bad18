"""MuJoCo's C engine as pure JAX functions: (state bits, control) -> (state bits, fields)."""

from __future__ import annotations

import copy
import hashlib
import threading
from collections import defaultdict, deque

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Bool, Float, UInt32

from jaxtrpo.envs import foreign
from jaxtrpo.envs.mujoco.layout import Layout, make_layout
from jaxtrpo.envs.mujoco.native import Simulator


class MujocoEngine:
    """A model and a pool of simulators that step it.

    A state row is float64 and must stay exact, so JAX, which computes in float32, carries its bits as pairs of uint32.
    A step depends only on its arguments, so any free simulator can serve a call; the pool grows to the number of
    concurrent calls.
    """

    def __init__(self, model: mujoco.MjModel, frame_skip: int, fields: tuple[str, ...], changes: tuple[str, ...]):
        # A copy, because simulators are made when they are needed, and all must have the same model.
        self.model, self.frame_skip = copy.copy(model), frame_skip
        self.layout: Layout = make_layout(model, fields, changes)
        self._free: dict[int, deque[Simulator]] = defaultdict(deque)
        self._lock = threading.Lock()
        # Raises MuJoCo's errors here instead of inside compiled code.
        self._free[1].append(Simulator(self.model, self.layout, 1, frame_skip))
        self._token = _register(self)

    def step(
        self, state: UInt32[Array, "env bits"], control: Float[Array, "env action"]
    ) -> tuple[UInt32[Array, "env bits"], Float[Array, "env fields"]]:
        """Applies `control` for `frame_skip` physics steps."""
        if control.shape != (len(state), self.model.nu):  # NumPy would broadcast it
            raise ValueError(f"actions have shape {control.shape}, expected {(len(state), self.model.nu)}")
        return self._foreign("step", state, jnp.asarray(control, jnp.float32))

    def reset(
        self,
        state: UInt32[Array, "env bits"],
        mask: Bool[Array, " env"],
        qpos: Float[Array, "env nq"],
        qvel: Float[Array, "env nv"],
    ) -> tuple[UInt32[Array, "env bits"], Float[Array, "env fields"]]:
        """Resets the environments in `mask` to (qpos, qvel); fields of the others are undefined."""
        return self._foreign("reset", state, mask, qpos, qvel)

    def blank(self, num_envs: int) -> UInt32[Array, "env bits"]:
        """Returns zeroed state bits, to be passed to `reset`."""
        return jnp.zeros((num_envs, 2 * self.layout.state_size), jnp.uint32)

    def _foreign(self, name: str, state: Array, *arguments: Array) -> tuple[Array, Array]:
        results = (
            jax.ShapeDtypeStruct(state.shape, jnp.uint32),
            jax.ShapeDtypeStruct((len(state), self.layout.field_size), jnp.float32),
        )
        call = jax.ffi.ffi_call(f"jaxtrpo_mujoco_{name}", results)
        new_state, fields = call(state, *arguments, physics=np.int64(self._token))
        return new_state, fields

    def run(self, name: str, *arrays: np.ndarray) -> None:
        """Calls the method `name` of a free simulator; called from compiled code, on one of XLA's threads."""
        num = len(arrays[0])
        with self._lock:
            simulator = self._free[num].pop() if self._free[num] else None
        if simulator is None:
            simulator = Simulator(self.model, self.layout, num, self.frame_skip)
        getattr(simulator, name)(*arrays)
        with self._lock:
            self._free[num].append(simulator)


# Compiled code, which may come from the cache on disk, identifies an engine by a number that depends only on the model
# and on the engine's arguments. Entries are kept, because compiled code may be called at any time.
_engines: dict[int, MujocoEngine] = {}


def _register(engine: MujocoEngine) -> int:
    size = mujoco.mj_sizeModel(engine.model)
    binary = np.empty(size, np.uint8)
    mujoco.mj_saveModel(engine.model, None, binary)
    digest = hashlib.sha256(binary.tobytes())
    digest.update(repr((mujoco.__version__, engine.frame_skip, engine.layout.fields, engine.layout.changes)).encode())
    token = int.from_bytes(digest.digest()[:7], "little")
    _engines.setdefault(token, engine)
    return token


foreign.register("jaxtrpo_mujoco_step", lambda token, *arrays: _engines[token].run("step", *arrays))
foreign.register("jaxtrpo_mujoco_reset", lambda token, *arrays: _engines[token].run("reset", *arrays))
