"""Batched simulation with MuJoCo's C engine, as functions on NumPy arrays."""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Sequence

import mujoco
import numpy as np

from jaxtrpo.envs.mujoco.layout import FORCES, LATER, Layout
from jaxtrpo.envs.mujoco.libmujoco import POINTER, BatchConfig, NoLogging, library, untimed

NO_STAGE = int(mujoco.mjtStage.mjSTAGE_NONE)
ALL_STAGES = int(mujoco.mjtStage.mjSTAGE_ACC)
NUM_WARNINGS = int(mujoco.mjtWarning.mjNWARNING)
UNSTABLE = slice(int(mujoco.mjtWarning.mjWARN_BADQPOS), NUM_WARNINGS)  # invalid numbers in qpos, qvel, qacc or ctrl
# Contacts or constraints were lost, because a buffer was full.
FULL = [int(mujoco.mjtWarning.mjWARN_CONTACTFULL), int(mujoco.mjtWarning.mjWARN_CNSTRFULL)]


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
        self._lib, self._no_logging, self._no_timer = library(), NoLogging(), untimed()
        self._model = model  # the batch has a copy, but sizes are read from it
        self._layout, self._num, self._frame_skip = layout, num, frame_skip
        # Some fields are only valid after another function, which needs what the last step left, such as its contacts.
        # Each simulation then needs its own MjData; otherwise one serves all, which is faster and takes less memory.
        later = dict.fromkeys(LATER[name] for name in layout.fields if name in LATER)
        error = ctypes.create_string_buffer(1000)
        config = BatchConfig(nthread=1, persistent=bool(later))
        self._batch = self._lib.mjb_makeBatch(model._address, num, ctypes.byref(config), error, len(error))
        if not self._batch:
            raise ValueError(f"MuJoCo cannot create a batch of {num} simulations of this model: {error.value.decode()}")
        functions = {name: ctypes.cast(getattr(self._lib, name), POINTER) for name in later}
        self._after_steps = list(functions.values())
        self._at_first = [function for name, function in functions.items() if name != FORCES]
        self._rows = self._view(self._lib.mjb_state(self._batch), self._lib.mjb_nstate(self._batch))
        self._control = self._rows[:, layout.control]
        self._status = self._integers(self._lib.mjb_status(self._batch), (num,))
        # An mjWarningStat is two integers; the second is the count.
        counts = self._integers(self._lib.mjb_warning(self._batch), (num, NUM_WARNINGS, 2))
        self._warnings, self._unstable = counts[..., 1], counts[:, UNSTABLE, 1]
        self._outputs = {name: self._bind(name) for name in layout.fields}
        self._slices = layout.slices()
        self._ids = np.arange(num, dtype=np.int32)
        # Cached, because reading it takes as long as a step of a small simulation.
        self._first_ids = self._ids.ctypes.data

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
            self._compute(self._after_steps, None, 0)
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
                self._compute(self._at_first, self._first_ids, num)
        fresh_state = np.empty((num, self._layout.state_size))
        fresh_fields = np.empty((num, self._layout.field_size), np.float32)
        self._save(None, fresh_state, fresh_fields)
        for name, _, columns in self._slices:
            if name in self._layout.zero_at_first:
                fresh_fields[:, columns] = 0
        new_state[...] = state
        new_state.view(np.float64)[which] = fresh_state
        fields[which] = fresh_fields

    def _compute(self, functions: Sequence[ctypes.c_void_p], ids: int | None, num: int) -> None:
        """Calls MuJoCo's functions for the first `num` simulations, or all (None, 0), and copies what they compute."""
        for function in functions:
            self._lib.mjb_apply(self._batch, ids, num, function, None, 0)
        if functions:
            self._lib.mjb_forward(self._batch, ids, num, NO_STAGE)  # skips all stages, but copies the outputs again

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
