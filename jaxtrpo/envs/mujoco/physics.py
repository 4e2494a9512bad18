"""The C engine as pure JAX functions: (state bits, control) -> (state bits, fields)."""

from __future__ import annotations

import functools
import threading
from collections import defaultdict, deque

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxtyping import Array, Bool, Float, UInt32

from jaxtrpo.envs.mujoco.native import Layout, Simulator, make_layout


class Physics:
    """A model and the simulators that step it. Identity is what compiled code is keyed on, so make one and keep it.

    A state row is float64 in the engine and must stay exact, so JAX, which computes in float32, carries its bits as
    pairs of uint32. Because everything a step depends on is in its arguments, any free simulator can serve any call: the
    pool grows to as many as run at once.
    """

    def __init__(self, model: mujoco.MjModel, frame_skip: int, fields: tuple[str, ...], changes: tuple[str, ...]):
        self.model, self.frame_skip = model, frame_skip
        self.layout: Layout = make_layout(model, fields, changes)
        self._free: dict[int, deque[Simulator]] = defaultdict(deque)
        self._lock = threading.Lock()
        # What MuJoCo refuses it refuses here, rather than inside compiled code.
        self._free[1].append(Simulator(model, self.layout, 1, frame_skip))

    def step(
        self, state: UInt32[Array, "env bits"], control: Float[Array, "env action"]
    ) -> tuple[UInt32[Array, "env bits"], Float[Array, "env fields"]]:
        """Holds `control` for `frame_skip` physics steps."""
        if control.shape != (len(state), self.model.nu):  # NumPy would broadcast it in silence
            raise ValueError(f"actions have shape {control.shape}, expected {(len(state), self.model.nu)}")
        return _bind(_step_p, self, state, control)

    def reset(
        self,
        state: UInt32[Array, "env bits"],
        mask: Bool[Array, " env"],
        qpos: Float[Array, "env nq"],
        qvel: Float[Array, "env nv"],
    ) -> tuple[UInt32[Array, "env bits"], Float[Array, "env fields"]]:
        """Starts the environments in `mask` at (qpos, qvel). Fields of the others are undefined."""
        return _bind(_reset_p, self, state, mask, qpos, qvel)

    def blank(self, num_envs: int) -> UInt32[Array, "env bits"]:
        """State bits to be reset."""
        return jnp.zeros((num_envs, 2 * self.layout.state_size), jnp.uint32)

    def _call(self, name: str, *arguments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Runs a simulator's function on XLA's thread, with NumPy arrays, without calling JAX (that could deadlock)."""
        num = len(arguments[0])
        with self._lock:
            simulator = self._free[num].pop() if self._free[num] else None
        if simulator is None:
            simulator = Simulator(self.model, self.layout, num, self.frame_skip)
        result = getattr(simulator, name)(*arguments)
        with self._lock:
            self._free[num].append(simulator)
        return result


def _primitive(name: str) -> Primitive:
    primitive = Primitive(f"mujoco_{name}")
    primitive.multiple_results = True

    @primitive.def_abstract_eval
    def _(state: ShapedArray, *_: ShapedArray, physics: Physics) -> list[ShapedArray]:
        return [state, ShapedArray((state.shape[0], physics.layout.field_size), jnp.dtype(jnp.float32))]

    def lower(ctx: mlir.LoweringRuleContext, *operands, physics: Physics):  # types of MLIR values are not public
        # jax.pure_callback would do the same, but puts every argument on a device first, which costs 200-300 us a call.
        results, _, _ = mlir.emit_python_callback(
            ctx,
            functools.partial(physics._call, name),
            None,
            operands,
            ctx.avals_in,
            ctx.avals_out,
            has_side_effect=False,
        )
        return results

    mlir.register_lowering(primitive, lower)
    return primitive


_step_p = _primitive("step")
_reset_p = _primitive("reset")


@functools.partial(jax.jit, static_argnums=(0, 1))
def _bind(primitive: Primitive, physics: Physics, *arguments: Array) -> tuple[Array, Array]:
    state, fields = primitive.bind(*arguments, physics=physics)
    return state, fields
