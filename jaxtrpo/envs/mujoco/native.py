"""The C engine, called directly: many simulations of one model behind two functions on NumPy arrays.

MuJoCo's batch interface (mjbatch.h) is used through ctypes rather than through `mujoco.batch.Batch`, which wraps the
same C functions, because the contact forces that Gymnasium's Ant and Humanoid observe need `mjb_apply`, and the Python
class does not expose it.
"""

from __future__ import annotations

import ctypes
import functools
import pathlib
import platform
import threading
from typing import NamedTuple

import mujoco
import numpy as np

POINTER, INT = ctypes.c_void_p, ctypes.c_int
NO_STAGE = int(mujoco.mjtStage.mjSTAGE_NONE)
ALL_STAGES = int(mujoco.mjtStage.mjSTAGE_ACC)
NUM_WARNINGS = int(mujoco.mjtWarning.mjNWARNING)
UNSTABLE = slice(int(mujoco.mjtWarning.mjWARN_BADQPOS), NUM_WARNINGS)  # bad numbers in qpos, qvel, qacc or ctrl


class _BatchConfig(ctypes.Structure):
    _fields_ = [("nthread", ctypes.c_int), ("persistent", ctypes.c_ubyte)]


@functools.cache
def _library() -> ctypes.CDLL:
    """libmujoco, as loaded by the mujoco package, with the functions we call declared."""
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
        "mjb_step": (INT, [POINTER, POINTER, INT, INT, INT]),
        "mjb_forward": (INT, [POINTER, POINTER, INT, INT]),
        "mjb_apply": (INT, [POINTER, POINTER, INT, POINTER, POINTER, ctypes.c_ubyte]),
        "_mjPRIVATE_setTlsLogHandler": (POINTER, [POINTER]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class _Silence:
    """`with silence:` keeps MuJoCo from printing warnings and logging them to a file in the working directory.

    Only on the thread that enters it. The log handler meanwhile is `mj_version`, a C function that does nothing with
    the message it is handed: one written in Python would need the interpreter, for which the other actors compete.
    MuJoCo's Python bindings set the handler of a thread in the same way, to turn errors into exceptions.
    """

    def __init__(self) -> None:
        self._set_handler = _library()._mjPRIVATE_setTlsLogHandler
        self._nothing = ctypes.cast(_library().mj_version, POINTER)

    def __enter__(self) -> None:
        self._before = self._set_handler(self._nothing)

    def __exit__(self, *_: object) -> None:
        self._set_handler(self._before)


class _Untimed:
    """`with untimed:` keeps MuJoCo from timing its stages, which takes a seventh of a step of HalfCheetah.

    It asks the clock of the process, `mjcb_time`, 32 times a physics step if there is one (114 times with Runge-Kutta's
    integrator), and the Python package sets one. It is taken away while any thread steps here, and given back when none
    does.
    """

    def __init__(self) -> None:
        self._clock = POINTER.in_dll(_library(), "mjcb_time")
        self._lock, self._inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before, self._clock.value = self._clock.value, None
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._clock.value = self._before


@functools.cache
def untimed() -> _Untimed:
    """The one that all threads share."""
    return _Untimed()


class Layout(NamedTuple):
    """How a simulation is laid out in the arrays that pass through JAX.

    A state row is float64: the parts of MuJoCo's integration state that a step changes, then the last values of the
    fields whose change the task reads. The inputs (applied forces, mocap, ...) are never touched and stay where they
    are. A field row is float32: the fields, then the changes.
    """

    fields: tuple[str, ...]
    changes: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]  # of each field for one simulation
    carried: tuple[slice, ...]  # parts of MuJoCo's state row
    control: slice
    state_size: int  # float64 numbers
    field_size: int  # float32 numbers

    def slices(self) -> list[tuple[str, bool, slice]]:
        """(field, is it a change, where it stands in a field row)."""
        found, start = [], 0
        for name, is_change in [(f, False) for f in self.fields] + [(c, True) for c in self.changes]:
            size = int(np.prod(self.shapes[name], dtype=int))
            found.append((name, is_change, slice(start, start + size)))
            start += size
        return found


def make_layout(model: mujoco.MjModel, fields: tuple[str, ...], changes: tuple[str, ...]) -> Layout:
    """Lays out `fields` and `changes` of a model.

    Raises:
      ValueError: a name is no MjData field of numbers, or a change is not among the fields.
    """
    data = mujoco.MjData(model)
    shapes = {}
    for name in fields:
        value = getattr(data, name, None)
        if not isinstance(value, np.ndarray) or value.dtype != np.float64:
            raise ValueError(f"Task.fields: {name!r} is not an MjData field of real numbers")
        shapes[name] = value.shape
    missing = [name for name in changes if name not in fields]
    if missing:
        raise ValueError(f"Task.changes: {missing[0]!r} is not in Task.fields")
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


class Simulator:
    """Memory in which `num` simulations are stepped by the calling thread.

    Nothing that matters outlives a call: states come in with it and go out with it. Not to be used by two threads at
    once.
    """

    def __init__(self, model: mujoco.MjModel, layout: Layout, num: int, frame_skip: int):
        self._lib, self._silence, self._untimed = _library(), _Silence(), untimed()
        self._model = model  # the batch copies it, but the arrays' shapes are read from it
        self._layout, self._num, self._frame_skip = layout, num, frame_skip
        # cfrc_ext is only meaningful after mj_rnePostConstraint, which needs the contacts of the last step in place:
        # then each simulation keeps an MjData of its own. Without it one serves all, which is faster and smaller.
        self._contact_forces = "cfrc_ext" in layout.fields
        error = ctypes.create_string_buffer(1000)
        config = _BatchConfig(nthread=1, persistent=self._contact_forces)
        self._batch = self._lib.mjb_makeBatch(model._address, num, ctypes.byref(config), error, len(error))
        if not self._batch:
            raise ValueError(f"MuJoCo cannot step a batch of {num} simulations of this model: {error.value.decode()}")
        self._post_constraint = ctypes.cast(self._lib.mj_rnePostConstraint, POINTER)
        self._rows = self._view(self._lib.mjb_state(self._batch), self._lib.mjb_nstate(self._batch))
        self._control = self._rows[:, layout.control]
        self._status = self._integers(self._lib.mjb_status(self._batch), (num,))
        # An mjWarningStat is two integers, of which the second counts.
        warnings = self._integers(self._lib.mjb_warning(self._batch), (num, NUM_WARNINGS, 2))
        self._unstable = warnings[:, UNSTABLE, 1]
        self._outputs = {name: self._bind(name) for name in layout.fields}
        self._slices = layout.slices()
        self._ids = np.arange(num, dtype=np.int32)
        self._first_ids = self._ids.ctypes.data  # found once: ctypes takes as long as a small simulation for it

    def __del__(self) -> None:
        if getattr(self, "_batch", None):
            self._lib.mjb_deleteBatch(self._batch)

    def _view(self, address: int, width: int) -> np.ndarray:
        pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_double))
        return np.ctypeslib.as_array(pointer, (self._num, width))

    def _integers(self, address: int, shape: tuple[int, ...]) -> np.ndarray:
        return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_int)), shape)

    def _bind(self, name: str) -> np.ndarray:
        """Live (num, size) float64 values of an MjData field; state fields are parts of the rows."""
        bit = getattr(mujoco.mjtState, f"mjSTATE_{name.upper()}", None)
        if bit is not None:
            start = mujoco.mj_stateSize(self._model, int(bit) - 1)
            return self._rows[:, start : start + mujoco.mj_stateSize(self._model, int(bit))]
        address = self._lib.mjb_output(self._batch, name.encode(), None, None)
        if not address:
            raise ValueError(f"Task.fields: MuJoCo cannot return {name!r} of a batch")
        size = int(np.prod(self._layout.shapes[name], dtype=int))
        return self._view(address, size) if size else np.empty((self._num, 0))  # where the model has none of it

    def step(self, state: np.ndarray, control: np.ndarray, new_state: np.ndarray, fields: np.ndarray) -> None:
        """Holds `control` (num, action) for one environment step; writes new state rows (uint32) and field rows.

        Fields are NaN where MuJoCo raised an error or calls the simulation unstable, whatever it made of it.
        """
        rows = state.view(np.float64)
        self._load(rows)
        self._control[...] = control
        self._unstable[...] = 0
        lib, batch, broken = self._lib, self._batch, None
        with self._silence, self._untimed:
            failed = lib.mjb_step(batch, None, 0, self._frame_skip, NO_STAGE)
            if failed or self._unstable.any():
                broken = (self._status != 0) | self._unstable.any(axis=1)
            if self._contact_forces:
                lib.mjb_apply(batch, None, 0, self._post_constraint, None, 0)
                lib.mjb_forward(batch, None, 0, NO_STAGE)  # computes nothing, but copies the outputs again
        self._save(rows, new_state.view(np.float64), fields)
        if broken is not None:
            fields[broken] = np.nan

    def reset(
        self,
        state: np.ndarray,
        mask: np.ndarray,
        qpos: np.ndarray,
        qvel: np.ndarray,
        new_state: np.ndarray,
        fields: np.ndarray,
    ) -> None:
        """Starts the simulations in `mask` at (qpos, qvel); others keep their state, and their fields are undefined."""
        which = np.flatnonzero(mask)
        num, nq, nv = len(which), self._model.nq, self._model.nv
        # Whichever simulations these are, the first rows serve: what is in them does not outlive the call.
        rows = self._rows[:num]
        rows[...] = self._default_row
        rows[:, 1 : 1 + nq] = qpos[which]  # the row starts with time, qpos, qvel
        rows[:, 1 + nq : 1 + nq + nv] = qvel[which]
        if num:  # none would mean all
            with self._silence:
                self._lib.mjb_forward(self._batch, self._first_ids, num, ALL_STAGES)
        fresh_state = np.empty((num, self._layout.state_size))
        fresh_fields = np.empty((num, self._layout.field_size), np.float32)
        self._save(None, fresh_state, fresh_fields)
        if self._contact_forces:
            # Gymnasium resets MjData and only runs mj_forward: no contact forces yet.
            for name, _, where in self._slices:
                if name == "cfrc_ext":
                    fresh_fields[:, where] = 0
        new_state[...] = state
        new_state.view(np.float64)[which] = fresh_state
        fields[which] = fresh_fields

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

    @np.errstate(over="ignore", invalid="ignore")  # numbers of a simulation that broke, which is found anyway
    def _save(self, before: np.ndarray | None, state: np.ndarray, fields: np.ndarray) -> None:
        """Copies the first simulations out, as many as `state` has; changes are relative to `before`, or zero."""
        num, start = len(state), 0
        for part in self._layout.carried:
            stop = start + part.stop - part.start
            state[:, start:stop] = self._rows[:num, part]
            start = stop
        for name, is_change, where in self._slices:
            value = self._outputs[name][:num]
            if is_change:
                stop = start + where.stop - where.start
                fields[:, where] = 0 if before is None else value - before[:, start:stop]
                state[:, start:stop] = value
                start = stop
            else:
                fields[:, where] = value
