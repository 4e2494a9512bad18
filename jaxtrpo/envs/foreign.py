"""Python functions as XLA foreign functions, which compiled code calls with views of its buffers.

`jax.pure_callback` first puts each argument on a device (200-300 us per call); here, arguments and results are NumPy
views of XLA's own memory, and results are filled in place. Compiled code refers to the function by name instead of by
address, so the persistent compilation cache can keep it.

The structures mirror XLA's C interface (xla/ffi/api/c_api.h, shipped with jaxlib), which is only ever extended at the
end of a structure.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

_P, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


class _Version(ctypes.Structure):
    _fields_ = [("struct_size", _SIZE), ("extension", _P), ("major", _INT), ("minor", _INT)]


class _Metadata(ctypes.Structure):
    _fields_ = [("struct_size", _SIZE), ("version", _Version), ("traits", ctypes.c_uint32)]


class _MetadataExtension(ctypes.Structure):
    _fields_ = [("struct_size", _SIZE), ("type", _INT), ("next", _P), ("metadata", ctypes.POINTER(_Metadata))]


class _ErrorArguments(ctypes.Structure):
    _fields_ = [("struct_size", _SIZE), ("extension", _P), ("message", ctypes.c_char_p), ("code", _INT)]


class _Api(ctypes.Structure):
    _fields_ = [
        ("struct_size", _SIZE),
        ("extension", _P),
        ("version", _Version),
        ("internal", _P),
        ("create_error", ctypes.CFUNCTYPE(_P, ctypes.POINTER(_ErrorArguments))),
    ]


class _Buffers(ctypes.Structure):
    _fields_ = [
        ("struct_size", _SIZE),
        ("extension", _P),
        ("size", ctypes.c_int64),
        ("types", _P),
        ("buffers", _P),  # address of an array of buffer addresses
    ]


_BUFFER = struct.Struct("@NPiPqP")  # size of this structure, extension, dtype, data, rank, address of the shape


class _Scalar(ctypes.Structure):
    _fields_ = [("dtype", _INT), ("value", ctypes.POINTER(ctypes.c_int64))]


class _Attributes(ctypes.Structure):
    _fields_ = [
        ("struct_size", _SIZE),
        ("extension", _P),
        ("size", ctypes.c_int64),
        ("types", _P),
        ("names", _P),
        ("values", ctypes.POINTER(ctypes.POINTER(_Scalar))),
    ]


class _CallFrame(ctypes.Structure):
    _fields_ = [
        ("struct_size", _SIZE),
        ("extension", ctypes.POINTER(_MetadataExtension)),
        ("api", ctypes.POINTER(_Api)),
        ("context", _P),
        ("stage", _INT),
        ("arguments", _Buffers),
        ("results", _Buffers),
        ("attributes", _Attributes),
    ]


_Handler = ctypes.CFUNCTYPE(_P, ctypes.POINTER(_CallFrame))
_DTYPES = {
    1: np.dtype(bool),
    4: np.dtype(np.int32),
    6: np.dtype(np.uint8),
    8: np.dtype(np.uint32),
    11: np.dtype(np.float32),
}
_METADATA, _INTERNAL_ERROR = 1, 13
_thread = threading.local()
_MAX_CACHED = 1024
# Buffer descriptors -> arrays, and (address, content) of their shapes.
_cache: dict[bytes, tuple[list[np.ndarray], list[tuple[int, bytes]]]] = {}
_handlers: list[object] = []  # keeps handlers alive, because XLA holds their addresses


def register(name: str, function: Callable[..., None]) -> None:
    """Registers `function(attribute, *arguments, *results)` as the foreign function `name` for compiled CPU code.

    Args:
      name: name to pass to `jax.ffi.ffi_call`, which takes exactly one keyword argument: the attribute, an int64.
      function: writes into `results`. Arguments and results are NumPy views of XLA's memory and must not be kept. The
        function runs on one of XLA's threads and must not call JAX, which could wait for that same thread.
    """

    def handle(frame_pointer) -> int | None:
        if not hasattr(_thread, "gil_state"):
            # Keeps the Python thread state of this XLA thread; creating and destroying it at every call takes 80 us.
            _thread.gil_state = ctypes.pythonapi.PyGILState_Ensure()
        frame = frame_pointer.contents
        if frame.extension and frame.extension.contents.type == _METADATA:
            # XLA asks which version of its interface this handler was built for; report the running one.
            metadata, version = frame.extension.contents.metadata.contents, frame.api.contents.version
            metadata.version.major, metadata.version.minor = version.major, version.minor
            return None
        try:
            attribute = frame.attributes.values[0].contents.value[0]
            function(attribute, *_arrays(frame.arguments), *_arrays(frame.results))
        except BaseException as error:  # including SystemExit, which would leave the results unwritten
            message = f"{name}: {type(error).__name__}: {error}".encode()
            arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message, _INTERNAL_ERROR)
            return frame.api.contents.create_error(ctypes.byref(arguments))
        return None

    handler = _Handler(handle)
    _handlers.append(handler)
    capsule = jax.ffi.pycapsule(ctypes.cast(handler, _P).value)
    jax.ffi.register_ffi_target(name, capsule, platform="cpu")


def _arrays(buffers: _Buffers) -> list[np.ndarray]:
    # `struct` parses the bytes, because access through ctypes' structures takes 5 us per array. In a loop, XLA passes
    # the same descriptors again and again. They lie next to each other in memory, so their bytes serve as the key of a
    # cache, which is faster than parsing them.
    size = buffers.size
    addresses = struct.unpack(f"{size}P", ctypes.string_at(buffers.buffers, 8 * size))
    if size == 0 or addresses != tuple(range(addresses[0], addresses[0] + size * _BUFFER.size, _BUFFER.size)):
        return [_array(ctypes.string_at(address, _BUFFER.size)) for address in addresses]
    descriptors = ctypes.string_at(addresses[0], size * _BUFFER.size)
    cached = _cache.get(descriptors)
    if cached is None or any(ctypes.string_at(address, len(dims)) != dims for address, dims in cached[1]):
        parts = [descriptors[start : start + _BUFFER.size] for start in range(0, len(descriptors), _BUFFER.size)]
        pointers = [_BUFFER.unpack(part)[4:] for part in parts]  # descriptors only point to the shapes
        shapes = [(address, ctypes.string_at(address, 8 * rank)) for rank, address in pointers if rank]
        if len(_cache) >= _MAX_CACHED:
            _cache.clear()
        cached = _cache[descriptors] = [_array(part) for part in parts], shapes
    return cached[0]


def _array(descriptor: bytes) -> np.ndarray:
    _, _, dtype, data, rank, dims = _BUFFER.unpack(descriptor)
    return _view(dtype, data, ctypes.string_at(dims, 8 * rank) if rank else b"")


def _bytes_at(address: int, size: int) -> Any:
    """Returns a buffer that shares the memory instead of copying it."""
    return (ctypes.c_char * size).from_address(address)


@functools.lru_cache(maxsize=1024)  # in a loop XLA reuses the same memory
def _view(dtype: int, data: int | None, dims: bytes) -> np.ndarray:
    """Returns an array that does not own its memory and is valid only during the call that XLA passes it to."""
    shape, kind = struct.unpack(f"{len(dims) // 8}q", dims), _DTYPES[dtype]
    size = kind.itemsize * math.prod(shape)
    memory = _bytes_at(data, size) if data and size else bytearray()  # an empty result is written, too
    return np.frombuffer(memory, kind).reshape(shape)
