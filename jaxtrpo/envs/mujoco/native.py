"""Batched simulation with MuJoCo's C engine, as functions on NumPy arrays.

MuJoCo's batch interface (mjbatch.h) is called through ctypes instead of `mujoco.batch.Batch`, which wraps the same C
functions, because the contact forces that Gymnasium's Ant and Humanoid observe need `mjb_apply`, which the Python class
does not expose.
"""

from __future__ import annotations

import ctypes
import functools
import pathlib
import platform
import threading
import warnings
from typing import NamedTuple

import mujoco
import numpy as np

POINTER, INT = ctypes.c_void_p, ctypes.c_int
NO_STAGE = int(mujoco.mjtStage.mjSTAGE_NONE)
ALL_STAGES = int(mujoco.mjtStage.mjSTAGE_ACC)
NUM_WARNINGS = int(mujoco.mjtWarning.mjNWARNING)
UNSTABLE = slice(int(mujoco.mjtWarning.mjWARN_BADQPOS), NUM_WARNINGS)  # invalid numbers in qpos, qvel, qacc or ctrl
# Contacts or constraints were lost, because a buffer was full.
FULL = [int(mujoco.mjtWarning.mjWARN_CONTACTFULL), int(mujoco.mjtWarning.mjWARN_CNSTRFULL)]
# Fields that a step leaves as they are, and MuJoCo's function that computes them.
LATER = {
    **dict.fromkeys(("cacc", "cfrc_int", "cfrc_ext"), "mj_rnePostConstraint"),
    **dict.fromkeys(("subtree_linvel", "subtree_angmom"), "mj_subtreeVel"),
}
# Fields that are computed where the model says so, and how it does.
FLAGS = {"energy": "energy", "qfrc_inverse": "fwdinv"}


class _BatchConfig(ctypes.Structure):
    _fields_ = [("nthread", ctypes.c_int), ("persistent", ctypes.c_ubyte)]


@functools.cache
def _library() -> ctypes.CDLL:
    """Returns libmujoco, as loaded by the mujoco package, with signatures for the functions called here."""
    folder = pathlib.Path(mujoco.__file__).parent
    pattern = {"Windows": "mujoco.dll", "Darwin": "libmujoco*.dylib"}.get(platform.system(), "libmujoco.so*")
    library = ctypes.CDLL(str(next(folder.glob(pattern))))
    signatures = {
        "mjb_makeBatch": (POINTER, [POINTER, INT, POINTER, ctypes.c_char_p, INT]),
        "mjb_deleteBatch": (None, [POINTER]),
        "mjb_nstate": (INT, [POINTER]),
        "mjb_state": (POINTER, [POINTER]),
        "mjb_output": (POINTER, [POINTER, ctypes.c_char_p, POINTER, POINTER]),
        "mjb_status": (POINTER, [POINTER]),
        "mjb_warning": (POINTER, [POINTER]),
        "mjb_error": (ctypes.c_char_p, [POINTER, INT]),
        "mjb_step": (INT, [POINTER, POINTER, INT, INT, INT]),
        "mjb_forward": (INT, [POINTER, POINTER, INT, INT]),
        "mjb_apply": (INT, [POINTER, POINTER, INT, POINTER, POINTER, ctypes.c_ubyte]),
        "_mjPRIVATE_setTlsLogHandler": (POINTER, [POINTER]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class _NoLogging:
    """Context manager that stops MuJoCo from printing warnings and logging them to a file in the working directory.

    It affects only the current thread. The log handler is replaced with `mj_version`, a C function that ignores its
    arguments; a handler in Python would need the global interpreter lock, for which the other actors compete. MuJoCo's
    Python bindings set the handler of a thread in the same way, to turn errors into exceptions.
    """

    def __init__(self) -> None:
        self._set_handler = _library()._mjPRIVATE_setTlsLogHandler
        self._ignore = ctypes.cast(_library().mj_version, POINTER)

    def __enter__(self) -> None:
        self._before = self._set_handler(self._ignore)

    def __exit__(self, *_: object) -> None:
        self._set_handler(self._before)


class _NoTimer:
    """Context manager that stops MuJoCo from timing its stages, which takes a seventh of a step of HalfCheetah.

    MuJoCo calls the global timer `mjcb_time`, which the Python package sets, 32 times per physics step (114 times with
    the Runge-Kutta integrator). The timer is removed while any thread is in this context, and restored afterwards.
    """

    def __init__(self) -> None:
        self._timer = POINTER.in_dll(_library(), "mjcb_time")
        self._lock, self._inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before, self._timer.value = self._timer.value, None
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._timer.value = self._before


@functools.cache
def untimed() -> _NoTimer:
    """Returns the instance that all threads share."""
    return _NoTimer()


class Layout(NamedTuple):
    """Layout of a simulation in the arrays that JAX carries.

    A state row is float64 and holds the parts of MuJoCo's integration state that a step changes, then the previous
    values of the fields in `Task.changes`. The other inputs (applied forces, mocap, ...) are constant and not carried.
    A field row is float32 and holds the fields, then the changes.
    """

    fields: tuple[str, ...]
    changes: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]  # shape of each field for one simulation
    carried: tuple[slice, ...]  # carried parts of MuJoCo's state row
    control: slice  # controls in MuJoCo's state row
    state_size: int  # number of float64 values in a state row
    field_size: int  # number of float32 values in a field row

    def slices(self) -> list[tuple[str, bool, slice]]:
        """Returns (field, whether it is a change, columns of a field row) for each part of a field row."""
        slices, start = [], 0
        for name, is_change in [(f, False) for f in self.fields] + [(c, True) for c in self.changes]:
            size = int(np.prod(self.shapes[name], dtype=int))
            slices.append((name, is_change, slice(start, start + size)))
            start += size
        return slices


def make_layout(model: mujoco.MjModel, fields: tuple[str, ...], changes: tuple[str, ...]) -> Layout:
    """Creates the layout for `fields` and `changes` of a model.

    Raises:
      ValueError: a name is not an MjData field of float64 numbers, MuJoCo does not compute it for this model, or a
        change is not among the fields.
    """
    data = mujoco.MjData(model)
    shapes = {}
    for name in fields:
        value = getattr(data, name, None)
        if isinstance(value, float):  # time
            value = np.asarray(value)
        if not isinstance(value, np.ndarray) or value.dtype != np.float64:
            raise ValueError(f"Task.fields: {name!r} is not an MjData field of float64 numbers")
        flag = FLAGS.get(name)
        if flag is not None and not model.opt.enableflags & int(getattr(mujoco.mjtEnableBit, f"mjENBL_{flag.upper()}")):
            raise ValueError(f'Task.fields: MuJoCo computes {name!r} only with <flag {flag}="enable"/> in the MJCF')
        shapes[name] = value.shape
    missing = [name for name in changes if name not in fields]
    if missing:
        raise ValueError(f"Task.changes: {missing[0]!r} must also be in Task.fields")
    inputs = int(mujoco.mjtState.mjSTATE_USER)
    carried, control, start = [], slice(0, 0), 0
    for bit in range(int(mujoco.mjtState.mjNSTATE)):
        size = mujoco.mj_stateSize(model, 1 << bit)
        if 1 << bit == int(mujoco.mjtState.mjSTATE_CTRL):
            control = slice(start, start + size)
        elif size and not inputs & (1 << bit):
            if carried and carried[-1].stop == start:
                carried[-1] = slice(carried[-1].start, start + size)
            else:
                carried.append(slice(start, start + size))
        start += size
    sizes = {name: int(np.prod(shape, dtype=int)) for name, shape in shapes.items()}
    change_size = sum(sizes[name] for name in changes)
    return Layout(
        fields=fields,
        changes=changes,
        shapes=shapes,
        carried=tuple(carried),
        control=control,
        state_size=sum(part.stop - part.start for part in carried) + change_size,
        field_size=sum(sizes.values()) + change_size,
    )


def _computes_forces(model: mujoco.MjModel) -> bool:
    """Returns whether mj_forward computes cacc, cfrc_int and cfrc_ext, because sensors of the model need them."""
    data = mujoco.MjData(model)
    data.cacc[:] = np.nan
    with _NoLogging():
        mujoco.mj_forward(model, data)
    return not np.isnan(data.cacc).any()


@functools.cache  # once
def _warn_of_full_buffers() -> None:
    warnings.warn(
        "MuJoCo: buffers of contacts or constraints are full, so that simulations lack some of them; increase "
        '<size memory="..."/> in the MJCF',
        stacklevel=2,
    )


class Simulator:
    """Workspace in which the calling thread steps `num` simulations.

    It keeps no state between calls: states are arguments and results. Two threads must not use it at the same time.
    """

    def __init__(self, model: mujoco.MjModel, layout: Layout, num: int, frame_skip: int):
        self._lib, self._no_logging, self._no_timer = _library(), _NoLogging(), untimed()
        self._model = model  # the batch has a copy, but sizes are read from it
        self._layout, self._num, self._frame_skip = layout, num, frame_skip
        # Some fields are only valid after another function, which needs what the last step left, such as its contacts.
        # Each simulation then needs its own MjData; otherwise one serves all, which is faster and takes less memory.
        later = {name: LATER[name] for name in layout.fields if name in LATER}
        error = ctypes.create_string_buffer(1000)
        config = _BatchConfig(nthread=1, persistent=bool(later))
        self._batch = self._lib.mjb_makeBatch(model._address, num, ctypes.byref(config), error, len(error))
        if not self._batch:
            raise ValueError(f"MuJoCo cannot create a batch of {num} simulations of this model: {error.value.decode()}")
        self._later = [ctypes.cast(getattr(self._lib, name), POINTER) for name in dict.fromkeys(later.values())]
        # As in Gymnasium, those that need the forces of a step are zero after mj_forward, unless sensors compute them.
        self._zero_at_first = [name for name, by in later.items() if by == "mj_rnePostConstraint"]
        if self._zero_at_first and _computes_forces(model):
            self._zero_at_first = []
        self._at_first = [ctypes.cast(self._lib.mj_subtreeVel, POINTER)] if "mj_subtreeVel" in later.values() else []
        self._rows = self._view(self._lib.mjb_state(self._batch), self._lib.mjb_nstate(self._batch))
        self._control = self._rows[:, layout.control]
        self._status = self._integers(self._lib.mjb_status(self._batch), (num,))
        # An mjWarningStat is two integers; the second is the count.
        counts = self._integers(self._lib.mjb_warning(self._batch), (num, NUM_WARNINGS, 2))
        self._warnings, self._unstable = counts[..., 1], counts[:, UNSTABLE, 1]
        self._outputs = {name: self._bind(name) for name in layout.fields}
        self._slices = layout.slices()
        self._ids = np.arange(num, dtype=np.int32)
        self._first_ids = (
            self._ids.ctypes.data
        )  # cached, because reading it takes as long as a step of a small simulation

    def __del__(self) -> None:
        if getattr(self, "_batch", None):
            self._lib.mjb_deleteBatch(self._batch)

    def _view(self, address: int, width: int) -> np.ndarray:
        pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_double))
        return np.ctypeslib.as_array(pointer, (self._num, width))

    def _integers(self, address: int, shape: tuple[int, ...]) -> np.ndarray:
        return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_int)), shape)

    def _bind(self, name: str) -> np.ndarray:
        """Returns a view (num, size) of the float64 values of an MjData field; state fields are parts of the rows."""
        bit = getattr(mujoco.mjtState, f"mjSTATE_{name.upper()}", None)
        if bit is not None:
            start = mujoco.mj_stateSize(self._model, int(bit) - 1)
            return self._rows[:, start : start + mujoco.mj_stateSize(self._model, int(bit))]
        address = self._lib.mjb_output(self._batch, name.encode(), None, None)
        if not address:
            raise ValueError(f"Task.fields: MuJoCo's batch interface does not provide {name!r}")
        size = int(np.prod(self._layout.shapes[name], dtype=int))
        return self._view(address, size) if size else np.empty((self._num, 0))  # empty in this model

    def step(self, state: np.ndarray, control: np.ndarray, new_state: np.ndarray, fields: np.ndarray) -> None:
        """Applies `control` (num, action) for one environment step; writes new state rows (uint32) and field rows.

        Fields of a simulation are NaN if MuJoCo reported it as unstable.

        Raises:
          RuntimeError: MuJoCo raised an error, such as that the model has too little memory.
        """
        rows = state.view(np.float64)
        self._load(rows)
        self._control[...] = control
        self._warnings[...] = 0
        lib, batch, unstable = self._lib, self._batch, None
        with self._no_logging, self._no_timer:
            if lib.mjb_step(batch, None, 0, self._frame_skip, NO_STAGE):
                self._raise_error()
            if self._warnings.any():
                unstable = self._unstable.any(axis=1)
            for function in self._later:
                lib.mjb_apply(batch, None, 0, function, None, 0)
            if self._later:
                lib.mjb_forward(batch, None, 0, NO_STAGE)  # skips all stages, but copies the outputs again
        if unstable is not None and self._warnings[:, FULL].any():
            _warn_of_full_buffers()
        self._save(rows, new_state.view(np.float64), fields)
        if unstable is not None:
            fields[unstable] = np.nan

    def reset(
        self,
        state: np.ndarray,
        mask: np.ndarray,
        qpos: np.ndarray,
        qvel: np.ndarray,
        new_state: np.ndarray,
        fields: np.ndarray,
    ) -> None:
        """Resets the simulations in `mask` to (qpos, qvel); others keep their state, and their fields are undefined."""
        which = np.flatnonzero(mask)
        num, nq, nv = len(which), self._model.nq, self._model.nv
        # The first rows serve for any simulations, because they hold nothing between calls.
        rows = self._rows[:num]
        rows[...] = self._default_row
        rows[:, 1 : 1 + nq] = qpos[which]  # a row starts with time, qpos, qvel
        rows[:, 1 + nq : 1 + nq + nv] = qvel[which]
        if num:  # 0 would mean all
            with self._no_logging:
                if self._lib.mjb_forward(self._batch, self._first_ids, num, ALL_STAGES):
                    self._raise_error()
                for function in self._at_first:
                    self._lib.mjb_apply(self._batch, self._first_ids, num, function, None, 0)
                if self._at_first:
                    self._lib.mjb_forward(self._batch, self._first_ids, num, NO_STAGE)
        fresh_state = np.empty((num, self._layout.state_size))
        fresh_fields = np.empty((num, self._layout.field_size), np.float32)
        self._save(None, fresh_state, fresh_fields)
        for name, _, columns in self._slices:
            if name in self._zero_at_first:
                fresh_fields[:, columns] = 0
        new_state[...] = state
        new_state.view(np.float64)[which] = fresh_state
        fields[which] = fresh_fields

    def _raise_error(self) -> None:
        """Raises the error of the first simulation whose last call failed."""
        message = self._lib.mjb_error(self._batch, int(np.flatnonzero(self._status)[0])).decode()
        raise RuntimeError(" ".join(message.split()))

    @functools.cached_property
    def _default_row(self) -> np.ndarray:
        data = mujoco.MjData(self._model)
        row = np.empty(self._rows.shape[1])
        mujoco.mj_getState(self._model, data, row, int(mujoco.mjtState.mjSTATE_INTEGRATION))
        return row

    def _load(self, rows: np.ndarray) -> None:
        start = 0
        for part in self._layout.carried:
            stop = start + part.stop - part.start
            self._rows[:, part] = rows[:, start:stop]
            start = stop

    @np.errstate(over="ignore", invalid="ignore")  # unstable simulations are detected elsewhere
    def _save(self, before: np.ndarray | None, state: np.ndarray, fields: np.ndarray) -> None:
        """Copies the first `len(state)` simulations out; changes are relative to `before`, or zero."""
        num, start = len(state), 0
        for part in self._layout.carried:
            stop = start + part.stop - part.start
            state[:, start:stop] = self._rows[:num, part]
            start = stop
        for name, is_change, columns in self._slices:
            value = self._outputs[name][:num]
            if is_change:
                stop = start + columns.stop - columns.start
                fields[:, columns] = 0 if before is None else value - before[:, start:stop]
                state[:, start:stop] = value
                start = stop
            else:
                fields[:, columns] = value
