"""Convolutions whose derivatives are fast on CPUs, also inside of loops."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Bool, Float, Num, Shaped

from jaxtrpo.parallel.collectives import on_cpu, trainings_are_batched

Images = Num[Array, "batch height width inputs"] | Bool[Array, "batch height width inputs"]
Kernel = Float[Array, "rows columns inputs outputs"]
Outputs = Float[Array, "batch new_height new_width outputs"]
Pair = tuple[int, int]

# The only order of axes with which XLA's convolutions are fast inside of loops on CPUs. It reorders others itself, but
# not inside of loops (its pass `conv-canonicalization` visits the outermost computation alone), where the derivative in
# the kernel of `conv_general_dilated` takes up to a hundred times as long.
AXES = ("NHWC", "HWIO", "NHWC")


class Places(NamedTuple):
    """Where a kernel is applied to an image."""

    strides: Pair  # pixels between neighbours in the result
    padding: tuple[Pair, Pair]  # zeros above and below, left and right


def convolve(
    x: Shaped[Array, "*batch height width inputs"], kernel: Kernel, *, stride: int = 1, same: bool = False
) -> Float[Array, "*batch new_height new_width outputs"]:
    """Computes the cross-correlation of images with a kernel, out[i, j] = sum_ab x[s i + a, s j + b] kernel[a, b].

    Args:
      x: images; integers have no derivative, and stay as small as they are until their floats are needed.
      kernel: odd sizes with `same`.
      stride: pixels between neighbours in the result.
      same: pad with zeros, so that the result has the size of the images; needs `stride` 1.
    """
    rows, columns = (side // 2 if same else 0 for side in kernel.shape[:2])
    places = Places((stride, stride), ((rows, rows), (columns, columns)))
    found = convolve_images(x.reshape(-1, *x.shape[-3:]), kernel, places)
    return found.reshape(*x.shape[:-3], *found.shape[1:])


def convolve_images(x: Images, kernel: Kernel, places: Places) -> Outputs:
    """Computes the same for images in a single row, with any strides and padding."""
    if not on_cpu():
        return _by_xla(x, kernel, places)
    if trainings_are_batched() and _fits(kernel, places):
        return _as_product(x, kernel, places)  # XLA is slow with a kernel for each training
    return _with_own_derivatives(x, kernel, places)


def framed(x: Float[Array, "..."], axis: int, before: int, after: int, value: float) -> Float[Array, "..."]:
    """Adds entries of one value before and after those of an axis; unlike `jnp.pad`, this can be exported as ONNX."""

    def edge(number: int) -> list[Array]:
        return [jnp.full_like(jax.lax.slice_in_dim(x, 0, 1, axis=axis), value)] * number

    return jnp.concatenate([*edge(before), x, *edge(after)], axis=axis)


def _by_xla(x: Images, kernel: Kernel, places: Places) -> Outputs:
    return jax.lax.conv_general_dilated(x.astype(kernel.dtype), kernel, *places, dimension_numbers=AXES)


# The value is XLA's convolution, which can be exported; `_linear_in_each` is the same with other derivatives.
@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _with_own_derivatives(x: Images, kernel: Kernel, places: Places) -> Outputs:
    return _by_xla(x, kernel, places)


@functools.partial(_with_own_derivatives.defjvp, symbolic_zeros=True)
def _derivative(places: Places, primals: tuple, tangents: tuple) -> tuple[Outputs, Outputs]:
    (x, kernel), (of_x, of_kernel) = primals, tangents
    found = _with_own_derivatives(x, kernel, places)
    # The images of a first layer have no tangent, and no time is spent on it. What is kept for the derivative in the
    # kernel are images as they came: keeping their floats would take longer than making them again.
    parts = [
        _linear_in_each.bind(*each, places=places)
        for each in ((of_x, kernel), (x, of_kernel))
        if not any(isinstance(one, SymbolicZero) for one in each)
    ]
    return found, sum(parts[1:], parts[0]) if parts else jnp.zeros_like(found)


def _transposed_in_images(cotangent: Outputs, x: Any, kernel: Kernel, *, places: Places) -> Any:
    if type(cotangent) is ad.Zero:
        return ad.Zero(x.aval)
    if _fits(kernel, places):
        # A matrix product is faster than a convolution with zeros between the cotangents.
        (found,) = jax.linear_transpose(lambda x: _as_product(x, kernel, places), x.aval)(cotangent)
        return found
    sizes = zip(x.aval.shape[1:3], kernel.shape, cotangent.shape[1:3], places.strides, places.padding, strict=False)
    return jax.lax.conv_general_dilated(
        cotangent,
        jnp.swapaxes(kernel[::-1, ::-1], 2, 3),
        (1, 1),
        [
            (side - 1 - before, size + before - (number - 1) * stride - 1)
            for size, side, number, stride, (before, _) in sizes
        ],
        lhs_dilation=places.strides,
        dimension_numbers=AXES,
    )


def _transposed_in_kernel(cotangent: Outputs, x: Images, kernel: Any, *, places: Places) -> Any:
    """The sum over n of images [input, ..., n] and cotangents [..., n, output], as a convolution."""
    if type(cotangent) is ad.Zero:
        return ad.Zero(kernel.aval)
    rows, columns = kernel.aval.shape[:2]
    found = jax.lax.conv_general_dilated(
        jnp.transpose(x, (3, 1, 2, 0)).astype(cotangent.dtype),
        jnp.transpose(cotangent, (1, 2, 0, 3)),
        (1, 1),
        places.padding,
        rhs_dilation=places.strides,
        dimension_numbers=AXES,
    )
    # Images may have pixels left over behind the last place of the kernel.
    return jnp.transpose(found, (1, 2, 0, 3))[:rows, :columns]


def _batched(arguments: tuple, axes: tuple, *, places: Places) -> tuple[Array, int]:
    x, kernel = arguments
    if axes[1] is None:
        x = jnp.moveaxis(x, axes[0], 0)
        found = _linear_in_each.bind(x.reshape(-1, *x.shape[2:]), kernel, places=places)
        return found.reshape(*x.shape[:2], *found.shape[1:]), 0
    return jax.vmap(lambda x, kernel: _by_xla(x, kernel, places), in_axes=axes)(x, kernel), 0


def _fits(kernel: Kernel, places: Places) -> bool:
    """Returns whether a convolution can be a product of blocks of pixels."""
    return not any(side % stride for side, stride in zip(kernel.shape, places.strides, strict=False))


def _as_product(x: Images, kernel: Kernel, places: Places) -> Outputs:
    """Gathers what the kernel covers, so that the sum is one matrix product."""
    x = x.astype(kernel.dtype)
    for axis, (before, after) in zip((1, 2), places.padding, strict=True):
        x = framed(x, axis, before, after, 0.0) if before or after else x
    x, kernel = _to_depth(x, kernel, places.strides)
    rows, columns, _, outputs = kernel.shape
    height, width = x.shape[1] - rows + 1, x.shape[2] - columns + 1
    covered = [x[:, i : i + height, j : j + width] for i in range(rows) for j in range(columns)]
    return jnp.concatenate(covered, axis=-1) @ kernel.reshape(-1, outputs)


def _to_depth(x: Images, kernel: Kernel, strides: Pair) -> tuple[Array, Array]:
    """Returns images and a kernel with which the strides are 1: channels of a pixel are those of a block of pixels."""
    if strides == (1, 1):
        return x, kernel
    down, right = strides
    rows, columns, inputs, outputs = kernel.shape
    height, width = (
        (size - side) // stride * stride + side
        for size, side, stride in zip(x.shape[1:3], (rows, columns), strides, strict=True)
    )
    blocks = x[:, :height, :width].reshape(-1, height // down, down, width // right, right, inputs)
    x = jnp.swapaxes(blocks, 2, 3).reshape(-1, height // down, width // right, down * right * inputs)
    blocks = kernel.reshape(rows // down, down, columns // right, right, inputs, outputs)
    return x, jnp.swapaxes(blocks, 1, 2).reshape(rows // down, columns // right, down * right * inputs, outputs)


_linear_in_each = Primitive("convolve")
_linear_in_each.def_impl(_by_xla)
_linear_in_each.def_abstract_eval(
    lambda x, kernel, *, places: ShapedArray(
        jax.eval_shape(functools.partial(_by_xla, places=places), x, kernel).shape, kernel.dtype
    )
)
ad.defbilinear(_linear_in_each, _transposed_in_images, _transposed_in_kernel)
batching.primitive_batchers[_linear_in_each] = _batched
mlir.register_lowering(_linear_in_each, mlir.lower_fun(_by_xla, multiple_results=False))
