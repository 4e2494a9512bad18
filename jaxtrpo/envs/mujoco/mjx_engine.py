"""MJX as pure functions of the little that one step hands to the next."""

from __future__ import annotations

import copy
import functools
import importlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from jaxtrpo.envs import base
from jaxtrpo.envs._support.names import unknown_name
from jaxtrpo.envs._support.quiet import no_output

IMPLEMENTATIONS = ("jax", "warp")
# What one step hands to the next, in the order of MuJoCo's integration state. mjx.Data holds much more, which the next
# step computes again, and on Warp some of it is not one simulation's.
CARRIED = ("time", "qpos", "qvel", "act", "qacc_warmstart")
# MJX allocates these, but a step leaves them alone or keeps another factorisation in them than MuJoCo does.
NOT_COMPUTED = ("qLD", "qLDiagInv", "qfrc_inverse", "userdata")
NOT_COMPUTED_ON_WARP = ("cfrc_ext", "cfrc_int", "cacc")  # mjx.rne_postconstraint is written for "jax" only

State = dict[str, Float[Array, "env ..."]]  # of `CARRIED`, what the model has any of


class Moved(NamedTuple):
    """What became of a batch of simulations."""

    state: State
    fields: dict[str, Float[Array, "env ..."]]
    finite: Bool[Array, " env"]  # False where MuJoCo would call the simulation unstable


class MjxEngine:
    """A model in MJX, and the fields that are wanted of it."""

    def __init__(self, model: mujoco.MjModel, shapes: dict[str, tuple[int, ...]], frame_skip: int, impl: str):
        """Puts the model into MJX and traces one step of it, which compiles nothing.

        Args:
          model: the compiled model.
          shapes: of the fields that are wanted, in MuJoCo.
          frame_skip: physics steps a control is held.
          impl: "jax" or "warp".

        Raises:
          ValueError: MJX has no such implementation or lacks a package for it, it does not support something in the
            model, or it does not compute a field.
        """
        if impl not in IMPLEMENTATIONS:
            raise ValueError(unknown_name(impl, IMPLEMENTATIONS, kind="implementation of MJX"))
        _require_heeded(model, impl)
        with no_output():
            self._mjx: Any = importlib.import_module("mujoco.mjx")
            if impl == "warp" and not importlib.import_module("mujoco.mjx.warp").WARP_INSTALLED:
                raise ValueError("MJX's impl='warp' needs the package warp-lang: pip install warp-lang")
        self._shapes, self._frame_skip, self._impl = shapes, frame_skip, impl
        self._source = _as_mjx_takes_it(model)
        self._carried = tuple(name for name in CARRIED if name != "act" or model.na)
        try:
            with no_output():
                # In NumPy: arrays of one device could not be used by programs of another.
                self._model = jax.tree.map(np.asarray, self._mjx.put_model(self._source, impl=impl))
                self._one = jax.tree.map(np.asarray, self._mjx.make_data(self._source, impl=impl))
                self._require_fields()
                row = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *np.shape(x)), x.dtype), self._one)
                jax.eval_shape(self.step, {name: getattr(row, name) for name in self._carried}, row.ctrl)
        except NotImplementedError as error:
            raise ValueError(f"MJX with impl={impl!r} does not support something in the model: {error}") from error

    def start(self, qpos: Float[Array, "env nq"], qvel: Float[Array, "env nv"]) -> Moved:
        """Simulations at rest but for their velocities; fields as Gymnasium finds them after a reset."""
        model, blank = self._constants(len(qpos))

        def one(qpos: Array, qvel: Array) -> Any:
            data = blank.replace(qpos=qpos, qvel=qvel)
            if not set(self._shapes) - set(CARRIED):  # what follows would be computed for nothing
                return data
            return self._mjx.forward(model, data).replace(qpos=qpos)  # MuJoCo does not normalise its quaternions here

        # Gymnasium runs mj_forward, which leaves contact forces (cfrc_ext) at zero; so does this.
        return self._leave(jax.vmap(one)(qpos, qvel))

    def step(self, state: State, control: Float[Array, "env action"]) -> Moved:
        """Holds `control` for `frame_skip` physics steps."""
        model, blank = self._constants(len(control))

        def one(state: dict[str, Array], control: Array) -> Any:
            data = blank.replace(ctrl=control, **state)
            data, _ = jax.lax.scan(lambda d, _: (self._mjx.step(model, d), None), data, length=self._frame_skip)
            # Nothing but the field needs it, and a step does not compute it.
            return self._mjx.rne_postconstraint(model, data) if "cfrc_ext" in self._shapes else data

        moved = self._leave(jax.vmap(one)(state, control))
        return moved._replace(finite=moved.finite & jnp.all(jnp.isfinite(control), axis=-1))

    def _constants(self, num: int) -> tuple[PyTree, Any]:
        """The model, and `mjx.Data` that stands for a batch of simulations that have done nothing yet."""
        blank = self._one
        if self._impl == "warp":
            # Warp keeps the contacts of a whole batch together, in as much memory as it gets here.
            room = num * int(blank._impl.naconmax)
            with no_output():
                blank = self._mjx.make_data(self._source, impl="warp", naconmax=room)
        return jax.tree.map(jnp.asarray, (self._model, blank))

    def _leave(self, data: Any) -> Moved:
        state = {name: getattr(data, name) for name in self._carried}
        num = len(data.qpos)
        fields = {name: self._field(data, name).reshape(num, *shape) for name, shape in self._shapes.items()}
        numbers = jnp.concatenate([data.qpos, data.qvel, data.qacc], axis=-1)
        finite = jnp.all(jnp.abs(numbers) <= base.LARGEST_OBSERVATION, axis=-1)
        for value in fields.values():
            finite &= jnp.all(jnp.isfinite(value.reshape(num, -1)), axis=-1)
        if self._impl == "warp":
            finite &= (data._impl.overflow.reshape(num) & self._overflows) == 0
        return Moved(state, fields, finite)

    def _field(self, data: Any, name: str) -> Any:
        """A field of `mjx.Data`, which keeps apart what implementations do not share; None if there is none."""
        return vars(data)[name] if name in vars(data) else getattr(data._impl, name, None)

    def _require_fields(self) -> None:
        absent = NOT_COMPUTED + (NOT_COMPUTED_ON_WARP if self._impl == "warp" else ())
        for name, shape in self._shapes.items():
            value = self._field(self._one, name)
            if value is None or name in absent or np.size(value) != np.prod(shape, dtype=int):
                raise ValueError(f"MJX with impl={self._impl!r} does not compute the field {name!r}")

    @functools.cached_property
    def _overflows(self) -> int:
        """What Warp notes where memory was too small for a step; not that a solver stopped at its limit."""
        kinds = importlib.import_module("mujoco.mjx.third_party.mujoco_warp._src.types").OverflowType
        return int(kinds.ALL & ~(kinds.ITERATIONS | kinds.LS_ITERATIONS))


def _require_heeded(model: mujoco.MjModel, impl: str) -> None:
    """Raises ValueError for what MJX would simulate the model without, and say nothing."""
    unheeded = {
        "delays of actuators and sensors": model.nhistory > 0,
        "plugins": model.nplugin > 0,
        "flexible bodies (flex)": model.nflex > 0,  # of which Warp has some, but not all of their state
    }
    if impl == "jax":
        unheeded["noslip_iterations"] = model.opt.noslip_iterations > 0
        unheeded["the ellipsoid model of fluids (fluidshape)"] = bool(np.any(model.geom_fluid[:, 0]))
    for what, is_there in unheeded.items():
        if is_there:
            raise ValueError(f"MJX with impl={impl!r} does not compute {what}")


def _as_mjx_takes_it(model: mujoco.MjModel) -> mujoco.MjModel:
    """A copy without what MJX has no need of, or another name for."""
    model = copy.copy(model)
    model.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)  # it never resets a simulation by itself
    if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
        model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON  # of the same convex problem
    return model
