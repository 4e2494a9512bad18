"""MuJoCo's C library through ctypes: signatures, and contexts without its logging and its timer.

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

import mujoco

POINTER, INT = ctypes.c_void_p, ctypes.c_int


class BatchConfig(ctypes.Structure):
    """Parameters of `mjb_makeBatch`."""

    _fields_ = [("nthread", ctypes.c_int), ("persistent", ctypes.c_ubyte)]


@functools.cache
def library() -> ctypes.CDLL:
    """Returns libmujoco, as loaded by the mujoco package, with signatures for the functions called here."""
    folder = pathlib.Path(mujoco.__file__).parent
    pattern = {"Windows": "mujoco.dll", "Darwin": "libmujoco*.dylib"}.get(platform.system(), "libmujoco.so*")
    found = ctypes.CDLL(str(next(folder.glob(pattern))))
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
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


class NoLogging:
    """Context manager that stops MuJoCo from printing warnings and logging them to a file in the working directory.

    It affects only the current thread. The log handler is replaced with `mj_version`, a C function that ignores its
    arguments; a handler in Python would need the global interpreter lock, for which the other actors compete. MuJoCo's
    Python bindings set the handler of a thread in the same way, to turn errors into exceptions.
    """

    def __init__(self) -> None:
        self._set_handler = library()._mjPRIVATE_setTlsLogHandler
        self._ignore = ctypes.cast(library().mj_version, POINTER)

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
        self._timer = POINTER.in_dll(library(), "mjcb_time")
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
