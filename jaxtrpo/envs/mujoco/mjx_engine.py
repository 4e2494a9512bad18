"""MJX as pure functions of a minimal state."""

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
# State that a step passes to the next, in the order of MuJoCo's integration state. mjx.Data holds much more, which the
# next step recomputes and which, on Warp, partly belongs to the whole batch.
CARRIED = ("time", "qpos", "qvel", "act", "qacc_warmstart")
# MJX allocates these, but a step does not update them or stores another factorisation than MuJoCo.
NOT_COMPUTED = ("qLD", "qLDiagInv", "qfrc_inverse", "userdata", "energy", "subtree_linvel", "subtree_angmom")
OF_FORCES = ("cfrc_ext", "cfrc_int", "cacc")  # computed by mjx.rne_postconstraint, which supports "jax" only

State = dict[str, Float[Array, "env ..."]]  # entries of `CARRIED` that the model has


class EngineStep(NamedTuple):
    """Result of a step or reset of a batch of simulations."""

    state: State
    fields: dict[str, Float[Array, "env ..."]]
    finite: Bool[Array, " env"]  # False if MuJoCo would report the simulation as unstable


class MjxEngine:
    """A model in MJX, which returns selected fields."""

    def __init__(self, model: mujoco.MjModel, shapes: dict[str, tuple[int, ...]], frame_skip: int, impl: str):
        """Transfers the model to MJX and traces one step, without compiling a program.

        Args:
          model: compiled model.
          shapes: MuJoCo's shapes of the fields to return.
          frame_skip: number of physics steps per environment step.
          impl: "jax" or "warp".

        Raises:
          ValueError: MJX has no such implementation or lacks a package for it, does not support the model, or does not
            compute a field.
        """
        if impl not in IMPLEMENTATIONS:
            raise ValueError(unknown_name(impl, IMPLEMENTATIONS, kind="implementation of MJX"))
        _require_supported(model, impl)
        with no_output():
            self._mjx: Any = importlib.import_module("mujoco.mjx")
            if impl == "warp" and not importlib.import_module("mujoco.mjx.warp").WARP_INSTALLED:
                raise ValueError("impl='warp' needs the package warp-lang: pip install warp-lang")
        self._shapes, self._frame_skip, self._impl = shapes, frame_skip, impl
        self._source = _adapted_to_mjx(model)
        self._carried = tuple(name for name in CARRIED if name != "act" or model.na)
        try:
            with no_output():
                # NumPy arrays, because arrays on one device cannot be used in programs for another.
                self._model = jax.tree.map(np.asarray, self._mjx.put_model(self._source, impl=impl))
                self._one = jax.tree.map(np.asarray, self._mjx.make_data(self._source, impl=impl))
                self._require_fields()
                row = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *np.shape(x)), x.dtype), self._one)
                jax.eval_shape(self.step, {name: getattr(row, name) for name in self._carried}, row.ctrl)
        except NotImplementedError as error:
            raise ValueError(f"MJX with impl={impl!r} does not support the model: {error}") from error

    def start(self, qpos: Float[Array, "env nq"], qvel: Float[Array, "env nv"]) -> EngineStep:
        """Starts simulations at (qpos, qvel), with all fields as in Gymnasium after a reset."""
        model, blank = self._constants(len(qpos))

        def one(qpos: Array, qvel: Array) -> Any:
            data = blank.replace(qpos=qpos, qvel=qvel)
            if not set(self._shapes) - set(CARRIED):  # no derived fields are needed
                return data
            return self._mjx.forward(model, data).replace(qpos=qpos)  # MuJoCo does not normalise quaternions here

        # As in Gymnasium, contact forces (cfrc_ext) are zero after mj_forward.
        return self._result(jax.vmap(one)(qpos, qvel))

    def step(self, state: State, control: Float[Array, "env action"]) -> EngineStep:
        """Applies `control` for `frame_skip` physics steps."""
        model, blank = self._constants(len(control))

        def one(state: dict[str, Array], control: Array) -> Any:
            data = blank.replace(ctrl=control, **state)
            data, _ = jax.lax.scan(lambda d, _: (self._mjx.step(model, d), None), data, length=self._frame_skip)
            # A step does not compute it, and only these fields need it.
            return self._mjx.rne_postconstraint(model, data) if {*OF_FORCES} & {*self._shapes} else data

        result = self._result(jax.vmap(one)(state, control))
        return result._replace(finite=result.finite & jnp.all(jnp.isfinite(control), axis=-1))

    def _constants(self, num: int) -> tuple[PyTree, Any]:
        """Returns the model and the initial `mjx.Data` of each of a batch of simulations."""
        blank = self._one
        if self._impl == "warp":
            # Warp stores the contacts of the whole batch together, so their capacity grows with the batch.
            capacity = num * int(blank._impl.naconmax)
            with no_output():
                blank = self._mjx.make_data(self._source, impl="warp", naconmax=capacity)
        return jax.tree.map(jnp.asarray, (self._model, blank))

    def _result(self, data: Any) -> EngineStep:
        state = {name: getattr(data, name) for name in self._carried}
        num = len(data.qpos)
        fields = {name: self._field(data, name).reshape(num, *shape) for name, shape in self._shapes.items()}
        numbers = jnp.concatenate([data.qpos, data.qvel, data.qacc], axis=-1)
        finite = jnp.all(jnp.abs(numbers) <= base.LARGEST_OBSERVATION, axis=-1)
        for value in fields.values():
            finite &= jnp.all(jnp.isfinite(value.reshape(num, -1)), axis=-1)
        if self._impl == "warp":
            finite &= (data._impl.overflow.reshape(num) & self._overflows) == 0
        return EngineStep(state, fields, finite)

    def _field(self, data: Any, name: str) -> Any:
        """Returns a field of `mjx.Data` or of its implementation-specific part; None if it does not exist."""
        return vars(data)[name] if name in vars(data) else getattr(data._impl, name, None)

    def _require_fields(self) -> None:
        absent = NOT_COMPUTED + (OF_FORCES if self._impl == "warp" else ())
        for name, shape in self._shapes.items():
            value = self._field(self._one, name)
            if value is None or name in absent or np.size(value) != np.prod(shape, dtype=int):
                raise ValueError(f"MJX with impl={self._impl!r} does not compute the field {name!r}")

    @functools.cached_property
    def _overflows(self) -> int:
        """Mask of Warp's overflow flags for lack of memory, without those for iteration limits of solvers."""
        kinds = importlib.import_module("mujoco.mjx.third_party.mujoco_warp._src.types").OverflowType
        return int(kinds.ALL & ~(kinds.ITERATIONS | kinds.LS_ITERATIONS))


def _require_supported(model: mujoco.MjModel, impl: str) -> None:
    """Raises ValueError if the model has a feature that MJX silently ignores."""

    def used(*names: str) -> bool:
        return any(np.any(getattr(model, name)) for name in names)

    disabled = [
        bit
        for bit in ("SPRING", "DAMPER")
        if model.opt.disableflags & int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{bit}"))
    ]
    unsupported = {
        "delays of actuators and sensors": model.nhistory > 0,
        "plugins": model.nplugin > 0,
        "flexible bodies (flex)": model.nflex > 0,  # Warp supports some, but not all of their state
        "springs and tendons that yield": mujoco.mj_stateSize(model, int(mujoco.mjtState.mjSTATE_PLASTIC)) > 0,
        "actuators with several controls": model.nactuator != model.nu,
    }
    if impl == "jax":
        unsupported["stiffness or damping that is a polynomial"] = used(
            "jnt_stiffnesspoly", "dof_dampingpoly", "tendon_stiffnesspoly", "tendon_dampingpoly", "actuator_dampingpoly"
        )
        unsupported["damping or armature of actuators"] = used("actuator_damping", "actuator_armature")
        unsupported["actearly"] = used("actuator_actearly")
        unsupported["groups of actuators that are disabled"] = model.opt.disableactuator != 0
        unsupported["surface velocity or adhesion of geoms"] = used("geom_surfacevel", "geom_adhesion", "pair_adhesion")
        unsupported["springs without dampers, or dampers without springs"] = len(disabled) == 1
        unsupported["noslip_iterations"] = model.opt.noslip_iterations > 0
        unsupported["the ellipsoid fluid model (fluidshape)"] = bool(np.any(model.geom_fluid[:, 0]))
    for feature, is_used in unsupported.items():
        if is_used:
            raise ValueError(f"MJX with impl={impl!r} does not support {feature}")


def _adapted_to_mjx(model: mujoco.MjModel) -> mujoco.MjModel:
    """Returns a copy of the model whose options MJX supports."""
    model = copy.copy(model)
    model.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)  # MJX never resets a simulation by itself
    if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
        model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON  # solves the same convex problem
    return model
